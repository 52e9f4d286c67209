"""The limit of `make bench`: onnxruntime in a process of its own, with no other work in it."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil
from numpy.typing import NDArray

from encoders import BenchEncoder, feed_of, mixed_lengths, sequences

_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_HOPELESS = 0.75


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How sequences are batched and run."""

    mixed: bool = False
    """Mixed lengths, else all of the encoder's own."""
    batch: int = 1
    by_length: bool = False
    """Sort all sequences by length before they are batched: a server sees only those that wait."""
    runs: int = 1
    """Runs at once."""
    threads: int = 0
    """Threads of one run; 0 is one per core."""


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """One graph of an encoder, run in another process."""

    executor: ProcessPoolExecutor
    encoder: BenchEncoder
    graph: Path

    def rate(self, config: RunConfig, seconds: float) -> float:
        """Return sequences per second."""
        return self.executor.submit(_measure, self.encoder, self.graph, config, seconds).result()[0]

    def p50_ms(self, config: RunConfig, seconds: float) -> float:
        """Return the median time of a run."""
        return self.executor.submit(_measure, self.encoder, self.graph, config, seconds).result()[1]

    def best(self, *, mixed: bool, at_once: bool, seconds: float) -> RunConfig:
        """Search for the configuration with the highest rate.

        Args:
            mixed: Run mixed lengths.
            at_once: Run one batch per core at once, each with one thread; else one with a thread per core.
            seconds: For each configuration.
        """
        runs, threads = (psutil.cpu_count() or 1, 1) if at_once else (1, 0)
        best, highest = RunConfig(mixed=mixed), 0.0
        for by_length in (False, True) if mixed else (False,):
            for batch in _BATCH_SIZES:
                config = RunConfig(mixed=mixed, batch=batch, by_length=by_length, runs=runs, threads=threads)
                rate = self.rate(config, seconds)
                if rate > highest:
                    best, highest = config, rate
                elif rate < _HOPELESS * highest:
                    break  # larger ones waste more on padding, or fit the caches less
        return best


@contextmanager
def in_process(encoder: BenchEncoder, models: Path, graph: str) -> Iterator[InProcess]:
    """Start the process for one graph of an encoder."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        yield InProcess(executor=executor, encoder=encoder, graph=models / encoder.name / "1" / graph)


def _measure(encoder: BenchEncoder, graph: Path, config: RunConfig, seconds: float) -> tuple[float, float]:
    """Run for about `seconds`; return sequences per second, and the median time of a run in ms."""
    session, feeds = _session(graph, config.threads), _feeds(encoder, config)
    for feed in feeds[:2]:
        session.run(None, feed)
    times: list[float] = []
    turn, lock, finished = itertools.count(), threading.Lock(), threading.Event()
    done = [0] * config.runs
    start = time.perf_counter()

    def work(number: int) -> None:
        while True:
            with lock:
                position = next(turn)
            # Whole rounds only, so that every length counts the same.
            if position and position % len(feeds) == 0 and time.perf_counter() - start > seconds:
                finished.set()
            if finished.is_set():
                return
            feed = feeds[position % len(feeds)]
            before = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - before)
            done[number] += len(feed["lengths"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(config.runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start), 1e3 * float(np.median(times))


@cache
def _session(graph: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # No spinning between operators, as in a server that shares its cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


@cache
def _feeds(encoder: BenchEncoder, config: RunConfig) -> list[dict[str, NDArray[np.generic]]]:
    """Return the inputs of all runs: of all mixed lengths, or one batch of the encoder's own."""
    if not config.mixed:
        return [feed_of(sequences(encoder, [encoder.tokens] * config.batch))]
    every = sequences(encoder, mixed_lengths(encoder.mixed))
    if config.by_length:
        every.sort(key=len)
    return [feed_of(every[start : start + config.batch]) for start in range(0, len(every), config.batch)]
