"""From what a machine says to what works on it, and to what its owner should do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyhead_server.doctor.examination import examine
from polyhead_server.doctor.machine import libraries_for
from polyhead_server.doctor.report import Cuda, Gpu, Machine, Memory, OnnxRuntime, OpenVino, Processors
from polyhead_server.engine.device import CPU, CUDA
from polyhead_server.errors import DeviceError, RepositoryError, StartError

RUNTIME = OnnxRuntime(version="1.31.1", packages=("onnxruntime-gpu",), cuda="13.0", providers=(CUDA, CPU))
H200 = Gpu(name="NVIDIA H200", capability="9.0", memory=141 * 2**30)
EVERYTHING = frozenset(library.name for library in libraries_for("13.0"))

ABSENT = OpenVino(version=None, computes=(), problem="OpenVINO is not installed")
PRESENT = OpenVino(version="2026.4.1", computes=("bf16", "fp32"), problem=None)
BF16 = {"AVX2": True, "AVX-512": True, "VNNI": True, "BF16": True, "AMX": False}


def with_gpu(
    *,
    has: frozenset[str] = EVERYTHING,
    installed: OnnxRuntime = RUNTIME,
    problem: str | None = None,
    shown: tuple[Gpu, ...] = (H200,),
    highest: str | None = "13.0",
    compiler: str | None = "13.0",
    instructions: dict[str, bool] | None = None,
    openvino: OpenVino = ABSENT,
) -> Machine:
    """A machine with a GPU, on which everything works unless a test says otherwise."""
    libraries = () if installed.cuda is None else libraries_for(installed.cuda)
    return Machine(
        processors=Processors(in_machine=16, affinity=8, usable=4, instructions=instructions),
        memory=Memory(total=128 * 2**30, available=100 * 2**30, limit=None),
        runtime=installed,
        openvino=openvino,
        cuda=Cuda(
            driver="580.159.04" if shown else None,
            highest=highest,
            runtime="13.0",
            compiler=compiler,
            gpus=shown,
            libraries=tuple(
                replace(library, path=f"/lib/{library.name}" if library.name in has else None)
                for library in libraries
            ),
            problem=problem,
        ),
    )


def bare(**changes: Any) -> Machine:
    """A machine without a GPU."""
    without = {"has": frozenset(), "problem": "missing libcuda.so.1", "shown": (), "highest": None}
    return with_gpu(**(without | changes))


def test_a_machine_on_which_all_is_there_runs_on_its_gpu() -> None:
    report = examine(with_gpu(), "auto")

    assert report.works
    assert (report.chosen, report.problems, report.advice) == ("cuda", (), ())
    assert report.cuda.gpus == (H200,)
    assert all(library.path == f"/lib/{library.name}" for library in report.cuda.libraries)


@pytest.mark.parametrize("asked", ["auto", "cpu"])
def test_a_machine_without_a_gpu_runs_on_the_cpu(asked: Any) -> None:
    report = examine(bare(), asked)

    assert report.works
    assert report.chosen == "cpu"


def test_cuda_that_is_asked_for_and_does_not_work_is_a_problem_with_every_remedy() -> None:
    (problem,) = examine(bare(), "cuda").problems

    assert problem.what == "--device cuda does not work here: missing libcuda.so.1"
    for step in ("NVIDIA driver", "--gpus all", "polyhead[cuda]", "nvidia-cublas,", "nvidia/cuda:13.0.x"):
        assert step in problem.remedy


def test_only_what_is_missing_is_to_be_installed() -> None:
    machine = with_gpu(has=EVERYTHING - {"libcurand.so.10"}, problem="missing libcurand.so.10")

    (problem,) = examine(machine, "cuda").problems

    assert "(it brings nvidia-curand)" in problem.remedy
    assert "driver" not in problem.remedy


def test_a_gpu_that_is_not_used_is_advice_where_the_cpu_serves() -> None:
    machine = with_gpu(has=EVERYTHING - {"libcurand.so.10"}, problem="missing libcurand.so.10")

    report = examine(machine, "auto")

    assert report.works
    assert report.advice[0].what == "there is a NVIDIA H200, but CUDA does not work: missing libcurand.so.10"


@pytest.mark.parametrize(
    ("openvino", "remedy"),
    [
        (
            ABSENT,
            "pip install 'polyhead[openvino]', then serve with --device openvino --compute-precision bf16",
        ),
        (PRESENT, "serve with --device openvino --compute-precision bf16"),
    ],
)
def test_a_processor_that_could_do_more_is_advice(openvino: OpenVino, remedy: str) -> None:
    machine = bare(instructions=BF16, openvino=openvino)

    (advice,) = examine(machine, "auto").advice

    assert advice.what.startswith("this processor has BF16")
    assert advice.remedy == remedy
    for unknown in (None, dict.fromkeys(BF16, False)):
        assert examine(bare(instructions=unknown, openvino=openvino), "auto").advice == ()


def test_a_precision_that_the_device_has_not_is_a_problem() -> None:
    report = examine(bare(), "cpu", compute_precision="bf16")

    (problem,) = report.problems
    assert problem.what.startswith(
        "--compute-precision bf16 does not work here: --device cpu computes in fp32"
    )
    assert problem.remedy == "serve with --compute-precision fp32, the default"


def test_openvino_that_is_not_installed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_reason: str) -> None:
        raise DeviceError("OpenVINO is not installed")

    monkeypatch.setattr("polyhead_server.engine.devices.on_openvino", fail)
    (problem,) = examine(bare(), "openvino").problems

    assert problem.remedy == "pip install 'polyhead[openvino]', or serve with --device cpu"


def test_cuda_works_without_cudnn_but_slower() -> None:
    report = examine(with_gpu(has=EVERYTHING - {"libcudnn.so.9"}), "cuda")

    assert report.works
    (advice,) = report.advice
    assert advice.what == "libcudnn.so.9 missing: attention runs, on slower kernels"
    assert "nvidia-cudnn-cu13" in advice.remedy


def test_a_compiler_that_is_newer_than_the_driver_is_reported() -> None:
    report = examine(with_gpu(compiler="13.10", highest="13.9"), "cuda")

    assert report.works
    (advice,) = report.advice
    assert advice.what.startswith("nvidia-cuda-nvrtc 13.10 newer than the driver, which runs CUDA up to 13.9")
    assert "'nvidia-cuda-nvrtc==13.9.*'" in advice.remedy
    assert examine(with_gpu(compiler=None), "cuda").advice == ()


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"shown": ()}, "CUDA_VISIBLE_DEVICES"),
        ({"highest": "12.8"}, "update the driver: it runs CUDA up to 12.8, this needs 13.0"),
        ({"highest": "13.1"}, "nvidia-smi"),
        ({"installed": replace(RUNTIME, cuda=None, providers=(CPU,))}, "polyhead[server,cuda]"),
    ],
)
def test_the_remedy_fits_the_cause(changes: dict[str, Any], remedy: str) -> None:
    machine = with_gpu(problem="a test run failed", **changes)

    (problem,) = examine(machine, "cuda").problems

    assert remedy in problem.remedy


def test_two_onnxruntimes_overwrite_each_other() -> None:
    both = replace(RUNTIME, packages=("onnxruntime", "onnxruntime-gpu"))

    report = examine(with_gpu(installed=both), "auto")

    assert not report.works
    assert "both installed" in report.problems[0].what


def test_packages_of_cuda_12_have_its_number() -> None:
    packages = {library.name: library.brought_by for library in libraries_for("12.8")}

    assert packages["libcublas.so.12"] == "nvidia-cublas-cu12"
    assert packages["libcudnn.so.9"] == "nvidia-cudnn-cu12"


def test_the_graphs_of_a_repository_are_part_of_it(repository: Path) -> None:
    report = examine(bare(), "cpu", models=repository)

    assert report.works
    assert {graph.model for graph in report.graphs} >= {"tiny", "tiny.attention", "tiny-tokens"}


def test_a_graph_that_cannot_be_served_is_a_problem(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)

    report = examine(bare(), "cpu", models=tmp_path)

    assert not report.works
    assert "broken, version 1: manifest.json cannot be read" in report.problems[0].what


def test_a_model_or_repository_that_is_not_there_is_an_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="has no model 'absent': it has tiny, "):
        examine(bare(), "cpu", models=repository, name="absent")
    with pytest.raises(StartError, match="must be a folder"):
        examine(bare(), "cpu", models=tmp_path / "none")


def test_where_no_device_works_no_graph_is_looked_at(repository: Path) -> None:
    assert examine(bare(), "cuda", models=repository).graphs == ()
