"""Engines in processes of their own: one that ends is named, and whole rounds are measured."""

from pathlib import Path
from typing import Any, cast

import pytest
from tests.checkpoints import bert_tokenizer

from benchmarks.encoders import TINY_ENCODERS, export_missing
from benchmarks.engines.backends import EngineModel
from benchmarks.engines.plans import BatchPlan, Sequences
from benchmarks.engines.processes import WorkerError, engine_worker
from benchmarks.engines.worker import measure_calls, measure_lanes
from benchmarks.graph import open_graph


def test_a_process_that_ends_is_named_with_its_log(tmp_path: Path) -> None:
    bert_tokenizer().save(str(tmp_path / "tokenizer.json"))
    model = EngineModel(
        kind="onnxruntime", path=str(tmp_path / "missing.onnx"), tokenizer=str(tmp_path / "tokenizer.json")
    )
    with engine_worker("it", model, tmp_path) as engine:
        with pytest.raises(WorkerError, match=r"it has ended; see .*\.log"):
            engine.embed([[1]], BatchPlan(batch=1))
        assert "missing.onnx" in engine.log.read_text()


def test_calls_are_measured_in_whole_rounds() -> None:
    calls: list[Sequences] = []

    found = measure_calls(calls.append, ["a", "b", "c", "d", "e"], 2, 0.0)

    assert calls == [["a", "b"], ["a", "b"], ["c", "d"], ["e"]]  # the first is not measured
    assert found["rate"] > 0


@pytest.mark.parametrize("plan", [BatchPlan(batch=2, lanes=2), BatchPlan(batch=3, by_length=True)])
def test_lanes_share_the_batches_of_whole_rounds(tmp_path: Path, plan: BatchPlan) -> None:
    export_missing(TINY_ENCODERS[:1], tmp_path)
    session = open_graph(TINY_ENCODERS[0].graph(tmp_path), 1)
    ran: list[list[int]] = []

    class Recorder:
        def run(self, names: object, feeds: Any) -> object:
            ran.append(feeds["lengths"].tolist())
            return session.run(names, feeds)

    found = measure_lanes(cast(Any, Recorder()), [3, 9, 1, 4, 7], 16, plan, 0.0)

    batches = [[9, 7, 4], [3, 1]] if plan.by_length else [[3, 9], [1, 4], [7]]
    assert sorted(ran[1:]) == sorted(batches)  # the first is not measured
    assert found["rate"] > 0
