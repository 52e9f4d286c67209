"""Several generators at once, as one load."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpu.generator import Order

_BENCHMARKS = Path(__file__).parent.parent
_CONNECTIONS = 8
"""Of each generator, at most: enough that every worker of a server has some."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a load measured."""

    sequences_per_second: float
    p50_ms: float
    p99_ms: float
    replies: int
    errors: int
    cores: float
    """Processors that the generators kept busy."""


class GeneratorError(Exception):
    """A generator ended without an answer, or failed."""


class Crowd:
    """Generators that stay from load to load; one that ended is started again for the next.

    Args:
        start: Starts a generator.
        generators: How many.
    """

    def __init__(self, start: Callable[[], "subprocess.Popen[str]"], generators: int) -> None:
        self._start = start
        self._processes = [start() for _ in range(generators)]

    def load(self, order: Order) -> Measured:
        """Sends from all of them, which share the requests in flight and start together.

        Raises:
            GeneratorError: One of them ended, or failed.
        """
        number = min(len(self._processes), order.in_flight)
        shares = [order.in_flight // number + (index < order.in_flight % number) for index in range(number)]
        for index in range(number):
            if self._processes[index].poll() is not None:
                _end(self._processes[index])
                self._processes[index] = self._start()
        called = self._processes[:number]
        try:
            for index, (process, share) in enumerate(zip(called, shares, strict=True)):
                mine = replace(order, in_flight=share, connections=min(_CONNECTIONS, share), seed=index)
                _tell(process, mine.as_json())
            for process in called:
                _hear(process)  # ready
            for process in called:
                _tell(process, "go")
            answers = [json.loads(_hear(process)) for process in called]
        except (GeneratorError, OSError):
            self.close()  # the others are in the middle of this load: the next one starts them anew
            raise
        failed = [str(answer["error"]) for answer in answers if "error" in answer]
        if failed:
            raise GeneratorError(f"{len(failed)} of {number} load generators failed: {failed[0]}")
        return together(order.batch, answers)

    def close(self) -> None:
        """Ends the generators."""
        for process in self._processes:
            _end(process)


@contextmanager
def crowd(generators: int) -> Iterator[Crowd]:
    """Starts generators, and ends them."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH")]))
    }

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "gpu.generator"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    callers = Crowd(start, generators)
    try:
        yield callers
    finally:
        callers.close()


def together(batch: int, answers: Sequence[dict[str, object]]) -> Measured:
    """The answers of several generators as one."""
    latencies = np.concatenate([np.asarray(answer["latencies_ms"], np.float64) for answer in answers])
    p50, p99 = np.percentile(latencies, [50, 99]) if len(latencies) else (np.nan, np.nan)

    def total(name: str) -> float:
        return sum(float(str(answer[name])) for answer in answers)

    return Measured(
        sequences_per_second=batch * total("replies_per_second"),
        p50_ms=float(p50),
        p99_ms=float(p99),
        replies=len(latencies),
        errors=int(total("errors")),
        cores=total("cores"),
    )


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # what it was not told any more
        pass


def _tell(process: "subprocess.Popen[str]", line: str) -> None:
    if process.stdin is None:
        raise GeneratorError("a load generator cannot be told anything")
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _hear(process: "subprocess.Popen[str]") -> str:
    if process.stdout is None or not (line := process.stdout.readline()):
        raise GeneratorError("a load generator ended; what it printed says why")
    return line
