"""Several generators at once, as one load."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
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
    """A generator ended without an answer."""


def load(order: Order, generators: int) -> Measured:
    """Sends from several processes, which share the requests in flight and start together.

    Raises:
        GeneratorError: One of them failed.
    """
    number = max(1, min(generators, order.in_flight))
    shares = [order.in_flight // number + (index < order.in_flight % number) for index in range(number)]
    orders = [
        replace(order, in_flight=share, connections=min(_CONNECTIONS, share), seed=index)
        for index, share in enumerate(shares)
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH")]))
    }
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "gpu.generator", each.as_json()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            for each in orders
        ]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            _wait_until_ready(process)
        for process in processes:
            _start(process)
        answers = [_answer(process) for process in processes]
    return together(order.batch, answers)


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


def _wait_until_ready(process: "subprocess.Popen[str]") -> None:
    if process.stdout is None or process.stdout.readline().strip() != "ready":
        raise GeneratorError("a load generator did not start; its log says why")


def _start(process: "subprocess.Popen[str]") -> None:
    if process.stdin is None:
        raise GeneratorError("a load generator cannot be told to start")
    process.stdin.write("go\n")
    process.stdin.flush()


def _answer(process: "subprocess.Popen[str]") -> dict[str, object]:
    if process.stdout is None or not (line := process.stdout.readline()):
        raise GeneratorError("a load generator ended without an answer; its log says why")
    answer: dict[str, object] = json.loads(line)
    return answer
