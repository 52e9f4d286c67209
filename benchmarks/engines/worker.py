"""A process that runs an engine as it is told, by lines of JSON: `python -m benchmarks.engines.worker`.

Each line is answered by one. What libraries print goes to the standard error.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.engines.backends import Embed, EngineModel, open_engine
from benchmarks.engines.plans import BatchPlan, Sequences, Vectors
from benchmarks.graph import open_graph, pad_vectors


def answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do what one line asks for: return the vectors, or how fast they are made."""
    plan, model = BatchPlan(**order["plan"]), EngineModel(**order["model"])
    if "d_model" in order:
        session = _session(model.path, plan.threads)
        return measure_lanes(session, tuple(order["lengths"]), order["d_model"], plan, order["seconds"])
    engine = _engine(model, plan.lanes, plan.threads)

    def embed(texts: Sequences) -> Vectors:
        return engine(texts, plan)

    if "seconds" not in order:
        return {"vectors": embed(order["texts"]).tolist()}
    return measure_calls(embed, order["texts"], order["per_call"], order["seconds"])


def measure_calls(
    embed: Callable[[Sequences], object], texts: Sequences, per_call: int, seconds: float
) -> dict[str, float]:
    """Embed all texts again and again for about `seconds`, so many in each call.

    Returns:
        The texts per second, and the median milliseconds of a call.
    """
    calls = [texts[start : start + per_call] for start in range(0, len(texts), per_call)]
    embed(calls[0])
    taken: list[float] = []
    start = time.perf_counter()
    for call in itertools.cycle(calls):
        began = time.perf_counter()
        embed(call)
        now = time.perf_counter()
        taken.append(now - began)
        # Whole rounds, so that every length counts the same.
        if len(taken) % len(calls) == 0 and now - start > seconds:
            break
    rounds = len(taken) / len(calls)
    return {"rate": rounds * len(texts) / (now - start), "p50_ms": 1e3 * float(np.median(taken))}


def measure_lanes(
    session: ort.InferenceSession, lengths: Sequence[int], d_model: int, plan: BatchPlan, seconds: float
) -> dict[str, float]:
    """Run vectors of these lengths again and again for about `seconds`, in lanes that wait for nothing.

    Returns:
        The sequences per second, and the median milliseconds of a run.
    """
    from polyhead_server.engine.allocator import give_memory_back, use_huge_pages  # other engines lack it

    random = np.random.default_rng(0)
    every = [random.standard_normal((length, d_model), np.float32) for length in lengths]
    feeds = [pad_vectors([every[at] for at in batch]) for batch in plan.batches(lengths)]
    give_memory_back()  # the limit has memory as the server has it
    session.run(None, feeds[0])
    use_huge_pages()
    times: list[list[float]] = [[] for _ in range(plan.lanes)]
    rates = [0.0] * plan.lanes
    turn, lock, finished = itertools.count(), threading.Lock(), threading.Event()
    start = time.perf_counter()

    def work(lane: int) -> None:
        done, now = 0, start
        while True:
            with lock:
                position = next(turn)
            # Whole rounds, so that every length counts the same.
            if position and position % len(feeds) == 0 and now - start > seconds:
                finished.set()
            if finished.is_set():
                break
            feed = feeds[position % len(feeds)]
            session.run(None, feed)
            before, now = now, time.perf_counter()
            times[lane].append(now - before)
            done += len(feed["lengths"])
        # Of its own time: at the end, lanes do not wait for each other.
        rates[lane] = done / (now - start) if done else 0.0

    lanes = [threading.Thread(target=work, args=(lane,)) for lane in range(plan.lanes)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return {"rate": sum(rates), "p50_ms": 1e3 * float(np.median(list(itertools.chain(*times))))}


@cache
def _engine(model: EngineModel, lanes: int, threads: int) -> Embed:
    return open_engine(model, lanes, threads)


@cache
def _session(graph: str, threads: int) -> ort.InferenceSession:
    return open_graph(graph, threads)


def main() -> None:
    """Answer line by line until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
