"""The first run of each (B, T) against those after it, as a server computes them: nothing may be compiled."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median

import numpy as np

from benchmarks.gpu.plan import TEXTS, Check, EncoderFamily
from polyhead_server.engine.engine import Engine

_SHAPES = 50
_RUNS = 6
"""Of each shape, its first one included."""


def run(check: Check) -> None:
    """Run each graph in a thread that begins as a server's does."""
    family = check.family(TEXTS)
    shapes = np.random.default_rng(0).integers((1, 9), (33, 129), (4 if check.tiny else _SHAPES, 2)).tolist()
    for graph in family.signatures():
        with check.attempt(graph), closing(check.engine(family, graph)) as engine:
            with ThreadPoolExecutor(1, initializer=engine.warm_up) as thread:
                taken = [thread.submit(_measure, family, graph, engine, shape).result() for shape in shapes]
            first, warm = [each[0] for each in taken], [median(each[1:]) for each in taken]
            ratios = [one / other for one, other in zip(first, warm, strict=True)]
            check.row(graph=graph, first_ms=median(first), longest_ms=max(first), warm_ms=median(warm))
            check.judge("shapes", float(np.percentile(ratios, 99)))


def _measure(family: EncoderFamily, graph: str, engine: Engine, shape: Sequence[int]) -> list[float]:
    """Return the milliseconds of each run of a shape."""
    feeds, taken = family.feeds(graph, [shape[1]] * shape[0]), []
    for _ in range(_RUNS):
        began = time.perf_counter()
        engine.run(feeds, engine.outputs[:1])
        taken.append(1e3 * (time.perf_counter() - began))
    return taken
