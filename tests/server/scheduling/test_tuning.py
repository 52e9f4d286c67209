"""A graph's costs are measured once, and remembered."""

from pathlib import Path

import pytest

from polyhead_server.engine.devices import on_cpu, on_cuda
from polyhead_server.engine.engine import Arrays, Engine
from polyhead_server.repository import read_manifest
from polyhead_server.repository.signature import signature_of
from polyhead_server.scheduling.tuning import Tuning, tune


def test_the_second_start_measures_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(repository / "tiny-tokens" / "1", family="tiny-tokens", version=1)
    signature = signature_of(manifest, "attention")
    file = repository / "tiny-tokens" / "1" / "attention.onnx"
    engine = Engine(file, signature=signature, device=on_cpu(""), threads=1)
    runs: list[tuple[int, ...]] = []
    real = Engine.run

    def run(engine: Engine, feeds: Arrays, outputs: list[str]) -> Arrays:
        runs.append(feeds["input_ids"].shape)
        return real(engine, feeds, outputs)

    monkeypatch.setattr(Engine, "run", run)
    tuning = Tuning(seconds=0.1, cache=tmp_path, max_batch_tokens=100)

    first = tune(engine, signature, threads=1, tuning=tuning)
    measured = len(runs)
    second = tune(engine, signature, threads=1, tuning=tuning)
    tune(engine, signature, threads=2, tuning=tuning)

    assert measured > 6
    assert max(tokens for _, tokens in runs) <= 32
    assert first.rows(9) == second.rows(9)
    assert len(first.rows(9)) == 1 + 100 // 9
    assert len(first.rows(101)) == 2
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"] * 2


def test_memory_bounds_a_batch(repository: Path) -> None:
    manifest = read_manifest(repository / "tiny" / "1", family="tiny", version=1)
    signature = signature_of(manifest, "fast")
    engine = Engine(
        repository / "tiny" / "1" / "model.onnx", signature=signature, device=on_cpu(""), threads=1
    )
    limit = signature.working_bytes(3, 16)
    table = tune(engine, signature, threads=1, tuning=Tuning(seconds=0.01, max_working_bytes=limit))

    assert len(table.rows(16)) == 4


def test_what_is_measured_on_a_gpu_is_about_that_gpu_and_those_who_share_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(repository / "tiny" / "1", family="tiny", version=1)
    signature = signature_of(manifest, "fast")
    monkeypatch.setattr("polyhead_server.engine.devices.gpu_name", lambda gpu: f"NVIDIA H200 at 00:0{gpu}.0")
    engine = Engine(
        repository / "tiny" / "1" / "model.onnx", signature=signature, device=on_cpu(""), threads=1
    )

    def kept(gpu: int, workers: int) -> list[str]:
        engine.device = on_cuda("", gpu)
        tune(engine, signature, threads=1, tuning=Tuning(seconds=0.01, cache=tmp_path, workers=workers))
        return sorted(file.suffix for file in tmp_path.iterdir())

    assert kept(0, 2) == [".json", ".lock"]
    assert kept(0, 2) == [".json", ".lock"]
    assert kept(0, 4) == [".json"] * 2 + [".lock"]
    assert kept(1, 4) == [".json"] * 3 + [".lock"] * 2
