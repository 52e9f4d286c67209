"""The limit: onnxruntime in a process of its own, with no other work in it."""

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime as ort
import psutil
from numpy.typing import NDArray

from benchmarks.encoders import BenchEncoder, feed_of, sequences
from benchmarks.frame import Sample
from benchmarks.texts.batches import BatchPlan
from polyhead_server.engine.devices import flush_denormals, on_cpu
from polyhead_server.engine.session import open_session

Config = TypeVar("Config", bound=Hashable)

CORES = psutil.cpu_count() or 1
WAYS = ((1, CORES), (CORES, 1)) if CORES > 1 else ((1, 1),)
"""Lanes and the threads of each: one run with all threads, or one-thread runs on each core."""

_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_HOPELESS = 0.75
"""After a batch size that is so much slower than the best, larger ones are not tried."""
_CLOSE = 0.9
"""What comes so close to the best is measured again before the best is picked."""
_LONG_MS = 1000.0
"""Runs that take longer gain nothing from a larger batch."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(BatchPlan):
    """How sequences are batched and run; a server, which sees only those that wait, cannot sort them all."""

    lengths: tuple[int, ...]
    """T of each sequence."""


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """One graph of an encoder, run in another process."""

    executor: ProcessPoolExecutor
    encoder: BenchEncoder
    graph: Path

    def measure(self, config: RunConfig, seconds: float) -> Sample:
        """Run for about `seconds`."""
        return self.executor.submit(_measure, self.encoder, self.graph, config, seconds).result()

    def one_in_flight(self, tokens: int) -> list[RunConfig]:
        """Return the ways to run one sequence at a time."""
        return [RunConfig(lengths=(tokens,), batch=1, threads=threads) for _, threads in WAYS]

    def search(self, lengths: tuple[int, ...], seconds: float) -> dict[RunConfig, float]:
        """Search for the configurations with the highest rate, one for each of `WAYS`.

        Args:
            lengths: T of each sequence.
            seconds: For each configuration.

        Returns:
            Each with the rate that it reached in the search.
        """
        orders = (False, True) if len(set(lengths)) > 1 else (False,)
        best = {}
        for lanes, threads in WAYS:
            groups = [
                [
                    RunConfig(lengths=lengths, batch=batch, by_length=by_length, lanes=lanes, threads=threads)
                    for batch in _BATCH_SIZES
                ]
                for by_length in orders
            ]
            config, rate = search_batches(groups, lambda config: self.measure(config, seconds))
            best[config] = rate
        return best


def search_batches(
    groups: Iterable[Iterable[Config]], measure: Callable[[Config], Sample]
) -> tuple[Config, float]:
    """Search for the configuration with the highest rate.

    Args:
        groups: In each, the batch size ascends.
        measure: Runs one for a while.

    Returns:
        It, with the rate that it reached in the search.
    """
    rates: dict[Config, float] = {}
    for group in groups:
        best = 0.0
        for config in group:
            speed = measure(config)
            rates[config] = speed.rate
            best = max(best, speed.rate)
            if speed.rate < _HOPELESS * best or speed.p50_ms > _LONG_MS:
                break
    close = [config for config, rate in rates.items() if rate > _CLOSE * max(rates.values())]
    again = {config: (rates[config] + measure(config).rate) / 2 for config in close}
    config = max(again, key=again.__getitem__)
    return config, again[config]


@contextmanager
def in_process(encoder: BenchEncoder, models: Path, graph: str) -> Iterator[InProcess]:
    """Start the process for one graph of an encoder."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=flush_denormals) as executor:
        yield InProcess(executor=executor, encoder=encoder, graph=models / encoder.name / "1" / graph)


def _measure(encoder: BenchEncoder, graph: Path, config: RunConfig, seconds: float) -> Sample:
    """Run whole rounds of all sequences for about `seconds`, so that every length counts the same."""
    session, feeds = _session(graph, config.threads), _feeds(encoder, config)
    session.run(None, feeds[0])
    times: list[list[float]] = [[] for _ in range(config.lanes)]
    rates = [0.0] * config.lanes
    turn, lock, finished = itertools.count(), threading.Lock(), threading.Event()
    start = time.perf_counter()

    def work(lane: int) -> None:
        done, now = 0, start
        while True:
            with lock:
                position = next(turn)
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

    lanes = [threading.Thread(target=work, args=(lane,)) for lane in range(config.lanes)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    p50_ms = 1e3 * float(np.median(list(itertools.chain(*times))))
    return Sample(rate=sum(rates), p50_ms=p50_ms, batch=config.batch)


@cache
def _session(graph: Path, threads: int) -> ort.InferenceSession:
    return open_session(graph, device=on_cpu("in process"), threads=threads)


@cache
def _feeds(encoder: BenchEncoder, config: RunConfig) -> list[dict[str, NDArray[np.generic]]]:
    """Return the inputs of all runs: sequences of equal length make one batch."""
    equal = len(set(config.lengths)) == 1
    every = sequences(encoder, config.lengths[:1] * config.batch if equal else config.lengths)
    if config.by_length:
        every.sort(key=len)
    return [feed_of(every[start : start + config.batch]) for start in range(0, len(every), config.batch)]
