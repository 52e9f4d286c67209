"""What works on a machine, and what its owner should do: on this one, and on machines that are made up."""

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.console import Console

from polyhead_client.command import main
from polyhead_server.doctor import Machine, app, examine, inspect, instructions_in, show, this_machine
from polyhead_server.engine.device import CPU
from polyhead_server.engine.devices import cuda_problem, on_cpu
from polyhead_server.engine.openvino_session import capabilities
from polyhead_server.errors import DeviceError, RepositoryError, StartError

Doctor = Callable[..., tuple[int, str]]

BARE = Machine(
    versions={"openvino": None, "driver": None},
    onnxruntime_packages=("onnxruntime-gpu",),
    onnxruntime_cuda="13.0",
    cuda_problem="missing libcuda.so.1",
)
"""A machine without a GPU."""
WITH_GPU = replace(BARE, versions={"openvino": None, "driver": "13.0"}, cuda_problem=None, gpus=1)
"""A machine on whose GPU everything works."""
FAST = ("AVX2", "AVX-512", "VNNI", "BF16")
INSTALLED = {"openvino": "2026.4.1", "driver": None}


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command; its status and what it printed, in one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = app(arguments, result_action="return_value")
        assert isinstance(status, int)
        return status, " ".join(capsys.readouterr().out.split())

    return run


# ---- The command -------------------------------------------------------------------------------


def test_the_cpu_works(doctor: Doctor) -> None:
    status, text = doctor("--device", "cpu")

    assert status == 0
    assert "works: --device cpu runs on cpu" in text


def test_json_is_for_programs(doctor: Doctor, repository: Path) -> None:
    status, text = doctor("--json", "--device", "cpu", "--models", str(repository), "tiny")

    facts = json.loads(text)
    assert status == 0
    assert (facts["works"], facts["chosen"], facts["asked"]) == (True, "cpu", "cpu")
    assert [graph["model"] for graph in facts["graphs"]] == ["tiny", "tiny.attention"]
    assert facts["machine"]["onnxruntime_packages"] == ["onnxruntime-gpu"]


def test_people_read_what_is_there_and_what_to_do(repository: Path) -> None:
    console = Console(width=240, record=True, file=io.StringIO())
    machine = replace(BARE, instructions=FAST, memory_gib=15.6, threads=2)

    show(examine(machine, "cpu", models=repository, name="tiny"), console)
    show(examine(machine, "cuda"), console)

    text = console.export_text()
    for line in (
        "threads                2",
        "memory gib             15.6",
        "instructions           AVX2, AVX-512, VNNI, BF16",
        "openvino               -",
        "model tiny.attention, version 1, precision fp32, provider CPUExecutionProvider",
        "advice: int8 is the fastest on this processor",
        "works: --device cpu runs on cpu",
        "problem: --device cuda does not work here: missing libcuda.so.1\n  to do: install what is missing",
    ):
        assert line in text


def test_a_name_without_a_repository_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tiny"]) == 1
    assert capsys.readouterr().err == "polyhead doctor: --models must say which repository has 'tiny'\n"


# ---- What the machine reports ------------------------------------------------------------------


def test_this_machine_is_described() -> None:
    machine = this_machine()

    assert 1 <= machine.threads <= machine.processors
    assert machine.memory_gib > 0
    assert machine.versions["onnxruntime"]
    assert machine.cuda_problem == cuda_problem()
    try:
        capabilities()
    except DeviceError:
        assert machine.versions["openvino"] is None
    else:
        assert machine.versions["openvino"]


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("model name\t: A\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", ["AVX2", "AVX-512", "BF16"]),
        ("flags\t\t: avx2 avx_vnni amx_tile amx_bf16\n", ["AVX2", "VNNI", "BF16"]),
        ("Features\t: fp asimd\n", []),
        (None, []),
    ],
)
def test_instructions_are_those_that_the_kernel_lists(
    tmp_path: Path, text: str | None, has: list[str]
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)

    assert instructions_in(tmp_path / "cpuinfo") == has


# ---- What works, and what to do ----------------------------------------------------------------


def test_cuda_that_is_asked_for_and_does_not_work_is_a_problem_with_every_remedy() -> None:
    (problem,) = examine(BARE, "cuda").problems

    assert problem.what == "--device cuda does not work here: missing libcuda.so.1"
    for step in ("polyhead[cuda]", "nvidia/cuda:13.0.x", "a driver", "--gpus all", "CUDA_VISIBLE_DEVICES"):
        assert step in problem.remedy


def test_an_onnxruntime_without_cuda_is_to_be_replaced() -> None:
    (problem,) = examine(replace(BARE, onnxruntime_cuda=None, cuda_problem="built without"), "cuda").problems

    assert "polyhead[server,cuda]" in problem.remedy


def test_a_gpu_that_is_not_used_is_advice_where_the_cpu_serves() -> None:
    report = examine(replace(WITH_GPU, cuda_problem="missing libcurand.so.10"), "auto")

    assert (report.chosen, report.problems) == ("cpu", [])
    assert report.advice[0].what == "there is a GPU, but missing libcurand.so.10"
    assert "polyhead[cuda]" in report.advice[0].remedy


@pytest.mark.parametrize(
    ("versions", "before"), [(BARE.versions, "pip install 'polyhead[openvino]', then "), (INSTALLED, "")]
)
def test_what_pays_on_a_processor_is_advice(versions: Any, before: str) -> None:
    def advice(*instructions: str, precision: Any = "fp32") -> list[str]:
        machine = replace(BARE, instructions=instructions, versions=versions)
        return [found.remedy for found in examine(machine, "auto", compute_precision=precision).advice]

    serve = f"{before}serve with --device openvino"
    int8 = f"polyhead export --precision int8; for a little more, {serve}"
    assert advice(*FAST) == [int8, f"{serve} --compute-precision bf16"]
    assert advice("AVX2", "VNNI") == [int8]
    assert advice("AVX2", "AVX-512") == [serve]
    assert advice("AVX2") == []


def test_a_precision_that_the_device_has_not_is_a_problem() -> None:
    (problem,) = examine(BARE, "cpu", compute_precision="bf16").problems

    assert problem.what.startswith(
        "--compute-precision bf16 does not work here: --device cpu computes in fp32"
    )
    assert problem.remedy == "serve with --compute-precision fp32, the default"


def test_openvino_that_is_not_installed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_reason: str) -> None:
        raise DeviceError("OpenVINO is not installed")

    monkeypatch.setattr("polyhead_server.engine.devices.on_openvino", fail)
    (problem,) = examine(BARE, "openvino").problems

    assert problem.remedy == "pip install 'polyhead[openvino]', or serve with --device cpu"


def test_two_onnxruntimes_overwrite_each_other() -> None:
    machine = replace(WITH_GPU, onnxruntime_packages=("onnxruntime", "onnxruntime-gpu"))

    (problem,) = examine(machine, "auto").problems

    assert "both installed" in problem.what


# ---- The graphs of a repository ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "models"),
    [("tiny", ["tiny", "tiny.attention"]), ("tiny.attention", ["tiny.attention"])],
)
def test_a_family_or_one_graph_of_it(repository: Path, name: str, models: list[str]) -> None:
    graphs = list(inspect(repository, name, on_cpu("")))

    assert [graph["model"] for graph in graphs] == models
    for graph in graphs:
        assert (graph["provider"], graph["precision"], graph["problem"]) == (CPU, "fp32", None)


def test_a_version_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)

    (problem,) = examine(BARE, "cpu", models=tmp_path).problems

    assert "broken, version 1: manifest.json cannot be read" in problem.what


def test_a_graph_that_does_not_load_is_a_problem_with_its_cause(repository: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(repository / "tiny", tmp_path / "tiny") / "1"
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    model.graph.node[0].op_type = "Unheard"
    content = model.SerializeToString()
    (folder / "model.onnx").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.onnx"] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))

    fast, attention = inspect(tmp_path, None, on_cpu(""))

    assert (fast["provider"], attention["problem"]) == (None, None)
    assert re.search(r"model\.onnx cannot be loaded by onnxruntime [\d.]+: .*Unheard", fast["problem"])


def test_sixteen_bits_on_the_cpu_are_a_problem(repository: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(repository / "tiny", tmp_path / "tiny") / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"precision": "fp16"}))

    for graph in inspect(tmp_path, None, on_cpu("")):
        assert (graph["provider"], graph["precision"]) == (None, "fp16")
        assert "which runs on CUDA only" in graph["problem"]


def test_what_bf16_changes_is_measured(repository: Path) -> None:
    try:
        offered = capabilities()
    except DeviceError as error:
        pytest.skip(str(error))
    if "BF16" not in offered:
        pytest.skip("this processor has no BF16")

    (graph,) = examine(
        BARE, "openvino", compute_precision="bf16", models=repository, name="tiny.attention"
    ).graphs

    assert 0.9 < graph["drift"]["cosines"]["output"]["least"] <= 1


def test_a_model_or_repository_that_is_not_there_is_an_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="has no model 'absent': it has tiny, "):
        examine(BARE, "cpu", models=repository, name="absent")
    with pytest.raises(StartError, match="must be a folder"):
        examine(BARE, "cpu", models=tmp_path / "none")
