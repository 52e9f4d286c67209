"""A process that embeds texts as it is told, by lines of JSON: `python -m benchmarks.texts.embed_worker`.

Each line is answered by one. What libraries print goes to the standard error.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median
from typing import Any

from benchmarks.texts.batches import BatchPlan, Sequences, Vectors
from benchmarks.texts.engines import Embed, EngineModel, open_engine


def answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do what one line asks for: return the vectors, or how fast they are made."""
    plan = BatchPlan(**order["plan"])
    engine = _engine(EngineModel(**order["model"]), plan.lanes, plan.threads)

    def embed(texts: Sequences) -> Vectors:
        return engine(texts, plan)

    if "seconds" not in order:
        return {"vectors": embed(order["texts"]).tolist()}
    return measure(embed, order["texts"], order["per_call"], order["seconds"])


def measure(
    embed: Callable[[Sequences], object], texts: Sequences, per_call: int, seconds: float
) -> dict[str, Any]:
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
    return {"rate": rounds * len(texts) / (now - start), "p50_ms": 1e3 * median(taken)}


@cache
def _engine(model: EngineModel, lanes: int, threads: int) -> Embed:
    return open_engine(model, lanes, threads)


def main() -> None:
    """Answer line by line until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
