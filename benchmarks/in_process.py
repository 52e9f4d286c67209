"""The limit: onnxruntime in a process of its own, with nothing around it.

Alone in its process, so that no thread of the load generator is left behind beside it. It takes one order a
line, as JSON, and answers each with one line.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import psutil
from numpy.typing import NDArray

from encoders import ENCODERS, BenchEncoder, equal_lengths, feed_of, mixed_lengths, sequences

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_HOPELESS = 0.75

Feed = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to compute sequences."""

    mixed: bool
    """Lengths as sentences have them; else all of the encoder's own."""
    batch: int = 1
    by_length: bool = False
    """Batches of neighbours by length, out of a whole round at once: more than a server can choose from."""
    runs: int = 1
    """Runs at once."""
    threads: int = 0
    """Threads of one run; 0 is one for each core."""


class InProcess:
    """The process that measures."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def rate(self, way: Way, seconds: float) -> float:
        """Measure sequences a second."""
        return self._ask(way, seconds)["rate"]

    def p50_ms(self, way: Way, seconds: float) -> float:
        """Return the median time of a run."""
        return self._ask(way, seconds)["p50_ms"]

    def best(self, *, mixed: bool, at_once: bool, seconds: float) -> Way:
        """Search for the way with the highest rate.

        Args:
            mixed: Lengths as sentences have them.
            at_once: Let several runs go at once, each with one thread.
            seconds: For each way.
        """
        runs, threads = (psutil.cpu_count() or 1, 1) if at_once else (1, 0)
        best, highest = Way(mixed=mixed), 0.0
        for by_length in (False, True) if mixed else (False,):
            for batch in BATCH_SIZES:
                way = Way(mixed=mixed, batch=batch, by_length=by_length, runs=runs, threads=threads)
                rate = self.rate(way, seconds)
                if rate > highest:
                    best, highest = way, rate
                elif rate < _HOPELESS * highest:
                    break  # larger ones waste more on padding, or fit the caches less
        return best

    def _ask(self, way: Way, seconds: float) -> dict[str, float]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(json.dumps({"way": asdict(way), "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def in_process(encoder: BenchEncoder, models: Path, graph: str = "model.onnx") -> Iterator[InProcess]:
    """Start the process for one graph of an encoder."""
    command = [sys.executable, __file__, "--models", str(models), "--encoder", encoder.name, "--graph", graph]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield InProcess(process)
        finally:
            process.terminate()


class _Worker:
    """What the process does."""

    def __init__(self, encoder: BenchEncoder, path: Path) -> None:
        self._encoder = encoder
        self._path = path
        self._sessions: dict[int, ort.InferenceSession] = {}
        self._feeds: dict[Any, list[Feed]] = {}

    def measure(self, way: Way, seconds: float) -> dict[str, float]:
        """Run for about so many seconds."""
        session, feeds = self._session(way.threads), self._feeds_of(way)
        for feed in feeds[:2]:
            session.run(None, feed)
        spent: list[float] = []
        done = [0] * way.runs
        lock = threading.Lock()
        start = time.perf_counter()
        turn = iter(range(10**9))

        def work(number: int) -> None:
            while True:
                with lock:
                    position = next(turn)
                # Whole rounds only, so that every length counts alike.
                if position % len(feeds) == 0 and position and time.perf_counter() - start > seconds:
                    finished.set()
                if finished.is_set():
                    return
                feed = feeds[position % len(feeds)]
                before = time.perf_counter()
                session.run(None, feed)
                spent.append(time.perf_counter() - before)
                done[number] += len(feed["lengths"])

        finished = threading.Event()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(way.runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {
            "rate": sum(done) / (time.perf_counter() - start),
            "p50_ms": float(np.median(spent)) * 1e3,
        }

    def _session(self, threads: int) -> ort.InferenceSession:
        if threads not in self._sessions:
            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.intra_op_num_threads = threads
            # No spinning between operators: what a server that shares its cores would be given.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._sessions[threads] = ort.InferenceSession(
                self._path, options, providers=["CPUExecutionProvider"]
            )
        return self._sessions[threads]

    def _feeds_of(self, way: Way) -> list[Feed]:
        key = way.mixed, way.batch, way.by_length
        if key not in self._feeds:
            self._feeds[key] = feeds(self._encoder, way)
        return self._feeds[key]


def feeds(encoder: BenchEncoder, way: Way) -> list[Feed]:
    """Return the inputs of all runs of one round: the encoder's mixed lengths, or one batch of equal ones."""
    if not way.mixed:
        return [feed_of(sequences(encoder, equal_lengths(encoder, way.batch)))]
    every: Sequence[NDArray[np.float32]] = sequences(encoder, mixed_lengths(encoder.round))
    if way.by_length:
        every = sorted(every, key=len)
    return [feed_of(every[start : start + way.batch]) for start in range(0, len(every), way.batch)]


def main() -> None:
    """Measure what each order asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--graph", required=True)
    arguments = parser.parse_args()
    (encoder,) = (each for each in ENCODERS if each.name == arguments.encoder)
    worker = _Worker(encoder, arguments.models / encoder.name / "1" / arguments.graph)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(worker.measure(Way(**order["way"]), order["seconds"])), flush=True)


if __name__ == "__main__":
    main()
