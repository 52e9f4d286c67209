"""Engines in processes of their own, and how they are measured."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.in_process import CORES
from benchmarks.texts.batches import BatchPlan, Sequences
from benchmarks.texts.embed_worker import measure
from benchmarks.texts.engines import EngineModel
from benchmarks.texts.workers import EngineWorker, WorkerError, plans_of

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_MODEL = EngineModel(kind="onnxruntime", path="model.onnx", tokenizer="tokenizer.json")
_ECHO = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    if order["plan"]["batch"] == 64:
        sys.exit(1)
    rate = order["plan"]["batch"] + order["plan"]["by_length"] - 10.0 * (order["plan"]["batch"] == 32)
    print(json.dumps({"vectors": [[len(text)] for text in order["texts"]]} if "seconds" not in order
        else {"rate": rate, "p50_ms": 1.0}), flush=True)
"""


@contextmanager
def worker() -> Iterator[EngineWorker]:
    """A process that answers without an engine."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _ECHO], text=True, stdin=pipe, stdout=pipe) as process:
        yield EngineWorker(name="it", model=_MODEL, process=process, log=Path("it.log"))
        process.terminate()


def test_texts_become_vectors() -> None:
    with worker() as engine:
        assert engine.embed(["one", "three"], BatchPlan(batch=2)).tolist() == [[3], [5]]


def test_the_fastest_plan_is_found() -> None:
    with worker() as engine:
        plan = engine.search(["a"] * 32, plans_of(_MODEL, 32, _SIZES), per_call=32, seconds=0.0)

    assert (plan.batch, plan.by_length) == (32, True)


def test_a_process_that_ends_is_named_with_its_log() -> None:
    with worker() as engine, pytest.raises(WorkerError, match=r"it has ended; see it\.log"):
        engine.embed(["one"], BatchPlan(batch=64))


def test_whole_rounds_are_measured() -> None:
    calls: list[Sequences] = []

    found = measure(calls.append, ["a", "b", "c", "d", "e"], 2, 0.0)

    assert calls == [["a", "b"], ["a", "b"], ["c", "d"], ["e"]]  # the first is not measured
    assert found["rate"] > 0


def test_what_sorts_by_itself_is_not_sorted() -> None:
    own = plans_of(_MODEL, 32, _SIZES)
    sorts = plans_of(EngineModel(kind="sentence-transformers", path="", tokenizer=""), 32, _SIZES)

    assert {plan.by_length for group in own for plan in group} == {False, True}
    assert [(plan.by_length, plan.threads) for (*_, plan) in sorts] == [(False, CORES)]
    assert max(plan.batch for group in (*own, *sorts) for plan in group) == 32
