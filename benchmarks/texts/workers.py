"""Processes that embed texts in environments of their own, one for each engine.

The thread pools of engines that share a process disturb each other.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.frame import Sample
from benchmarks.in_process import CORES, WAYS, search_batches
from benchmarks.texts.batches import BatchPlan, Sequences, Vectors
from benchmarks.texts.engines import EngineModel
from polyhead_load.sweep.server import memory_of

_ROOT = Path(__file__).parents[2]


class WorkerError(Exception):
    """A process that embeds texts has ended."""


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
        answer = self._ask(texts=texts, plan=plan, per_call=per_call, seconds=seconds)
        return Sample(**answer, batch=plan.batch)

    def search(
        self, texts: Sequences, plans: Sequence[Sequence[BatchPlan]], *, per_call: int, seconds: float
    ) -> BatchPlan:
        """Search for the plan with the highest rate.

        Args:
            texts: All texts.
            plans: In groups of ascending batch size.
            per_call: How many an engine gets at once: it batches and sorts them.
            seconds: For each plan.
        """

        def of_a_batch(plan: BatchPlan) -> Sample:
            speed = self.measure(texts, plan, per_call=per_call, seconds=seconds)
            return replace(speed, p50_ms=speed.p50_ms * plan.batch / per_call)

        plan, _ = search_batches(plans, of_a_batch)
        return plan

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


def plans_of(model: EngineModel, per_call: int, batch_sizes: Sequence[int]) -> list[list[BatchPlan]]:
    """Return the plans that an engine may run so many texts by, in groups of ascending batch size."""
    sizes = [size for size in batch_sizes if size <= per_call]
    if model.kind == "sentence-transformers":  # it sorts by itself, and runs one batch at a time
        return [[BatchPlan(batch=size, threads=CORES) for size in sizes]]
    return [
        [BatchPlan(batch=size, by_length=by_length, lanes=lanes, threads=threads) for size in sizes]
        for lanes, threads in WAYS
        for by_length in (False, True)
    ]


@contextmanager
def engine_worker(name: str, python: Path, model: EngineModel, folder: Path) -> Iterator[EngineWorker]:
    """Start a process for one engine, and end it.

    Args:
        name: What the engine is called.
        python: Of the environment that has it.
        model: What it opens.
        folder: Where its log goes.
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
            [python, "-m", "benchmarks.texts.embed_worker"],
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
