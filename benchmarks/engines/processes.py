"""Engines in processes of their own, each in its environment, and the search for their fastest plans.

The thread pools of engines that share a process disturb each other.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from benchmarks.engines.backends import EngineModel
from benchmarks.engines.plans import BatchPlan, Sequences, Vectors
from benchmarks.rounds import Sample
from polyhead_load.sweep.server import memory_of

Plan = TypeVar("Plan", bound=Hashable)

CORES = psutil.cpu_count() or 1
WAYS = ((1, CORES), (CORES, 1)) if CORES > 1 else ((1, 1),)
"""Lanes and the threads of each: one run with all threads, or one-thread runs on each core."""

_HOPELESS = 0.75
"""After a batch size that is so much slower than the best, larger ones are not tried."""
_CLOSE = 0.9
"""What comes so close to the best is measured again before the best is picked."""
_LONG_MS = 1000.0
"""Runs that take longer gain nothing from a larger batch."""
_ROOT = Path(__file__).parents[2]


class WorkerError(Exception):
    """The process of an engine has ended."""


@dataclass(frozen=True, kw_only=True)
class EngineWorker:
    """One engine in a process of its own."""

    name: str
    model: EngineModel
    process: "subprocess.Popen[str]"
    log: Path

    @property
    def memory_mib(self) -> float:
        """The memory of its process."""
        return memory_of(psutil.Process(self.process.pid)) / 2**20

    def embed(self, texts: Sequences, plan: BatchPlan) -> Vectors:
        """Return the vectors [B, D] of texts."""
        return np.array(self._ask(texts=texts, plan=plan)["vectors"], np.float32)

    def measure(self, texts: Sequences, plan: BatchPlan, *, per_call: int, seconds: float) -> Sample:
        """Embed all texts for about `seconds`, so many in each call; rates are of texts."""
        return Sample(**self._ask(texts=texts, plan=plan, per_call=per_call, seconds=seconds))

    def measure_vectors(
        self, lengths: Sequence[int], d_model: int, plan: BatchPlan, *, seconds: float
    ) -> Sample:
        """Run sequences of vectors of these lengths, from a graph's inputs to all of its outputs."""
        order = {"lengths": list(lengths), "d_model": d_model}
        return Sample(**self._ask(plan=plan, **order, seconds=seconds))

    def _ask(self, *, plan: BatchPlan, **order: Any) -> dict[str, Any]:
        sent, received = self.process.stdin, self.process.stdout
        assert sent is not None
        assert received is not None
        line = ""
        try:
            print(
                json.dumps({**order, "model": asdict(self.model), "plan": asdict(plan)}),
                file=sent,
                flush=True,
            )
            line = received.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise WorkerError(f"{self.name} has ended; see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def engine_worker(
    name: str, model: EngineModel, folder: Path, *, python: Path = Path(sys.executable)
) -> Iterator[EngineWorker]:
    """Start a process for one engine, and end it.

    Args:
        name: What the engine is called.
        model: What it opens.
        folder: Where its log goes.
        python: Of the environment that has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{model.kind}-{Path(model.path).name}-{model.variant or 'fp32'}.log".replace("/", "-")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": str(CORES),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }
    with (
        log.open("w") as output,
        subprocess.Popen(
            [python, "-m", "benchmarks.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            yield EngineWorker(name=name, model=model, process=process, log=log)
        finally:
            process.terminate()


# ---- The strongest plan --------------------------------------------------------------------------------


def plans_of(
    way: tuple[int, int], batch_sizes: Iterable[int], *, sorted_too: bool = True
) -> list[list[BatchPlan]]:
    """Return the plans of so many lanes and threads, in groups of ascending batch size.

    Args:
        way: Lanes, and threads of each.
        batch_sizes: Ascending.
        sorted_too: Whether sequences may be sorted by length.
    """
    lanes, threads = way
    return [
        [BatchPlan(batch=size, by_length=by_length, lanes=lanes, threads=threads) for size in batch_sizes]
        for by_length in (False, True)[: 1 + sorted_too]
    ]


def search(groups: Iterable[Iterable[Plan]], measure: Callable[[Plan], Sample]) -> tuple[Plan, float]:
    """Search for the plan with the highest rate.

    Args:
        groups: In each, the batch size ascends.
        measure: Runs one for a while; its p50 is that of a run.

    Returns:
        It, with the rate that it reached in the search.
    """
    rates: dict[Plan, float] = {}
    for group in groups:
        best = 0.0
        for plan in group:
            speed = measure(plan)
            rates[plan] = speed.rate
            best = max(best, speed.rate)
            if speed.rate < _HOPELESS * best or speed.p50_ms > _LONG_MS:
                break
    close = [plan for plan, rate in rates.items() if rate > _CLOSE * max(rates.values())]
    again = {plan: (rates[plan] + measure(plan).rate) / 2 for plan in close}
    plan = max(again, key=again.__getitem__)
    return plan, again[plan]
