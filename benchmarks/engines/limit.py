"""The limit of what serving an encoder of vectors can reach: onnxruntime alone, at its best batch size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.encoders import BenchEncoder
from benchmarks.engines.backends import EngineModel
from benchmarks.engines.plans import BatchPlan
from benchmarks.engines.processes import WAYS, EngineWorker, engine_worker, plans_of, search
from benchmarks.rounds import Sample, console

LIMIT = "onnxruntime alone"
"""How the names of its plans begin."""
ALONE = {BatchPlan(batch=1, threads=threads): 0.0 for _, threads in WAYS}
"""The plans of one sequence at a time."""
_BATCH_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class EncoderLimit:
    """One encoder in a process of its own, with the machine to itself."""

    encoder: BenchEncoder
    worker: EngineWorker
    seconds: float
    """Of a sample."""

    def run(self, lengths: Sequence[int], plan: BatchPlan, seconds: float) -> Sample:
        """Run sequences of these lengths by a plan."""
        if len(set(lengths)) == 1:
            lengths = [lengths[0]] * plan.batch  # one run is a round
        return self.worker.measure_vectors(lengths, self.encoder.config.d_model, plan, seconds=seconds)

    def search(self, lengths: Sequence[int]) -> dict[BatchPlan, float]:
        """Return the fastest plan of each way to use the processors, with the rate that it reached."""
        run = partial(self.run, lengths)
        sorted_too = len(set(lengths)) > 1
        with console.status(f"{self.encoder}: limits"):
            return dict(
                search(
                    plans_of(way, _BATCH_SIZES, sorted_too=sorted_too),
                    lambda plan: run(plan, self.seconds / 4),
                )
                for way in WAYS
            )

    def measures(self, lengths: Sequence[int], plans: Iterable[BatchPlan]) -> dict[str, Callable[[], Sample]]:
        """Return what measures some plans, by name; each takes half as long as a server."""
        return {f"{LIMIT}, {plan}": partial(self.run, lengths, plan, self.seconds / 2) for plan in plans}


@contextmanager
def limit_of(encoder: BenchEncoder, models: Path, *, logs: Path, seconds: float) -> Iterator[EncoderLimit]:
    """Start the process, and end it.

    Args:
        encoder: The encoder.
        models: The model repository that has it.
        logs: Where its log goes.
        seconds: Of a sample.
    """
    model = EngineModel(kind="onnxruntime", path=str(encoder.graph(models)))
    with engine_worker(LIMIT, model, logs) as worker:
        yield EncoderLimit(encoder=encoder, worker=worker, seconds=seconds)
