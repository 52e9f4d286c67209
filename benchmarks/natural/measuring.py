"""What measures servers and engines in process under one load."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.frame import Sample, compare
from benchmarks.natural.batches import BatchPlan, Sequences
from benchmarks.natural.comparison import TextComparison, TextTraffic
from benchmarks.natural.served import TextServer
from benchmarks.natural.workers import EngineWorker


def measure(
    encoder: str,
    traffic: TextTraffic,
    servers: Sequence[TextServer],
    engines: Mapping[str, tuple[EngineWorker, BatchPlan]],
    sequences: Sequences,
    *,
    at_once: int,
    seconds: float,
    rounds: int,
) -> TextComparison:
    """Measure everyone in turn.

    Args:
        encoder: The encoder's name.
        traffic: The load.
        servers: Those that take calls of so many sequences take part.
        engines: Engines in process by name, each with how it batches.
        sequences: What is sent.
        at_once: How many sequences an engine in process gets at once.
        seconds: For each sample.
        rounds: Turns of each.
    """

    def run(worker: EngineWorker, plan: BatchPlan) -> Sample:
        speed = worker.measure(sequences, plan, per_call=at_once, seconds=seconds)
        return Sample(rate=speed.rate, p50_ms=speed.p50_ms, batch=plan.batch)

    measures: dict[str, Callable[[], Sample]] = {
        server.name: partial(
            server.measure, sequences, per_call=traffic.per_call, in_flight=traffic.in_flight, seconds=seconds
        )
        for server in servers
        if server.max_batch >= traffic.per_call
    }
    measures |= {name: partial(run, worker, plan) for name, (worker, plan) in engines.items()}
    return TextComparison(
        traffic=traffic,
        samples=compare(f"{encoder}: {traffic.title}", measures, rounds),
        plans={name: str(plan) for name, (_, plan) in engines.items()},
    )
