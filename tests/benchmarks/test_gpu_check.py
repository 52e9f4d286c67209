"""The command as it is started, on the CPU with tiny encoders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from tests.benchmarks.test_programs import start

from benchmarks.gpu import bare
from benchmarks.gpu.plan import families_of
from benchmarks.gpu.pytorch import compiled
from benchmarks.gpu_check import conditions_of
from polyhead_export.kinds import KINDS, kinds_of
from polyhead_model import Encoder, EncoderConfig
from polyhead_server.engine.devices import on_cuda


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its head left out."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path) -> None:
    done = start(tmp_path, "benchmarks.gpu_check", "--parts", "lengths")

    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "nothing was measured" in said
    assert "sees no GPU" in said
    assert not list(tmp_path.rglob("*.md"))


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that wait for each other take a busy machine's time
    done = start(tmp_path, "benchmarks.gpu_check", "--device", "cpu", "--tiny")

    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "build" / "bench"
    journal = [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    logs = "\n".join(file.read_text()[-2_000:] for file in out.glob("*.log"))
    assert [each for each in journal if each["kind"] == "problem"] == [], logs
    page = (out / "gpu-cpu.md").read_text()
    assert page.startswith("# cpu: polyhead's graphs\n")
    assert "the numbers mean nothing" in page
    conditions = json.loads((out / "gpu-cpu.json").read_text())["conditions"]
    met = {one["name"]: one["holds"] for one in conditions}
    assert met["every part measured something"]
    assert met["graphs of any family that are not served ≤ 0"]
    assert met["fp32: errors by float64 × the limit of an export ≤ 1"]
    assert met["fp32: any output, from a CPU server's ≤ 0.0001"]
    assert met["calls that failed under any load ≤ 0"]
    assert {name.partition(":")[0] for name, holds in met.items() if holds is None} == {"fp16", "bf16"}
    assert [family for family, _ in rows(page, "Exports")] == ["bert fp32", "minilm fp32", "maxsim fp32"]
    kinds = {graph for _, graph, *_ in rows(page, "The machine, and where graphs are computed")}
    assert kinds == {"model", "attention", "rows", "insight", "stream", "maxsim"}
    assert len(rows(page, "Natural lengths, and attention")) == 7
    assert len(rows(page, "Served")) == 7


def test_a_gpu_is_asked_for_every_kind_in_every_precision(tmp_path: Path) -> None:
    families = families_of(on_cuda(""), tmp_path, tiny=False)

    for precision in ("fp32", "fp16", "bf16"):
        own = [each for each in families if each.precision == precision]
        kinds = {kind.name for each in own for kind in kinds_of(each.encoder.config, each.graphs)}
        assert kinds == set(KINDS)


def test_a_target_is_met_missed_or_not_run() -> None:
    found = [("shapes", 1.0), ("served", 2000.0), ("shapes", 3.0)]
    judged = {
        one.name: (one.holds, one.seen)
        for one in conditions_of([{"key": key, "value": value} for key, value in found])
    }

    assert judged["first run of a (B, T) × warm, 99th percentile ≤ 1.2"] == (False, "3")
    assert judged["single texts/s, 256 in flight, in the first second ≥ 1500"] == (True, "2,000")
    assert judged["any mix × the best bare graph ≥ 0.75"] == (None, "")


def test_bare_graphs_compute_the_same(tmp_path: Path) -> None:
    config = EncoderConfig(d_model=32, heads=4, layers=2, feed_forward=48, vocabulary=50, positions=16)
    lengths, graph = [5, 1, 7], tmp_path / "bare.onnx"
    encoded = {}
    for form in bare.FORMS:
        bare.build(config, form, graph, emulated=True)
        feeds = bare.feeds_of(config, form, lengths)
        (encoded[form],) = ort.InferenceSession(graph, providers=["CPUExecutionProvider"]).run(None, feeds)
    padded = encoded.pop(bare.PADDED)[np.arange(7) < np.array(lengths)[:, None]]

    for packed in encoded.values():
        np.testing.assert_allclose(packed, padded, atol=1e-6)


@pytest.mark.parametrize("pack", [False, True])
def test_compiled_encoders_compute_the_same(pack: bool) -> None:
    config = EncoderConfig(
        d_model=32, heads=4, layers=2, feed_forward=48, vocabulary=50, positions=16, pooling="mean"
    )
    torch.manual_seed(0)
    encoder, lengths = Encoder(config).eval(), torch.tensor([5, 1, 7], dtype=torch.int32)
    ids = torch.randint(50, (3, 7))
    result: Any = compiled(encoder, ids, lengths, pack=pack)()

    torch.testing.assert_close(result.pooled, encoder(ids, lengths).pooled.detach(), atol=1e-5, rtol=1e-5)


def test_a_part_that_measures_nothing_has_failed(tmp_path: Path) -> None:
    (tmp_path / "models-gpu").write_text("not a folder")
    models = str(tmp_path / "models")
    done = start(
        tmp_path,
        "benchmarks.gpu_check",
        "--device",
        "cpu",
        "--tiny",
        "--parts",
        "families",
        "--models",
        models,
    )

    assert done.returncode == 1
    assert "families did not: see" in " ".join(done.stdout.split())
