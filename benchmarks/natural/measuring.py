"""Everyone takes turns under one load."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.progress import Progress

from benchmarks.natural.batches import BatchPlan, Sequences
from benchmarks.natural.comparison import TextComparison, TextTraffic
from benchmarks.natural.served import TextServer
from benchmarks.natural.workers import EngineWorker
from benchmarks.peers.comparison import PeerSample
from benchmarks.turns import in_turn

Measures = Mapping[str, Callable[[], PeerSample]]
"""By the name of whom they measure."""


def of_servers(
    servers: Sequence[TextServer], traffic: TextTraffic, sequences: Sequences, *, seconds: float
) -> Measures:
    """Return what measures the servers that take calls of so many sequences."""
    return {
        server.name: partial(
            server.measure, sequences, per_call=traffic.per_call, in_flight=traffic.in_flight, seconds=seconds
        )
        for server in servers
        if server.max_batch >= traffic.per_call
    }


def of_worker(
    worker: EngineWorker, sequences: Sequences, plan: BatchPlan, *, at_once: int, seconds: float
) -> Callable[[], PeerSample]:
    """Return what measures an engine in process that gets so many sequences at once."""

    def measure() -> PeerSample:
        speed = worker.measure(sequences, plan, per_call=at_once, seconds=seconds)
        return PeerSample(rate=speed.rate, p50_ms=speed.p50_ms, batch=plan.batch)

    return measure


def compare(
    encoder: str,
    traffic: TextTraffic,
    measures: Measures,
    plans: Mapping[str, BatchPlan],
    progress: Progress,
    *,
    rounds: int,
) -> TextComparison:
    """Measure everyone in turn.

    Args:
        encoder: The encoder's name.
        traffic: The load.
        measures: Of everyone.
        plans: Of engines in process, by name.
        progress: Shows how far it is.
        rounds: Turns of each.
    """
    samples: dict[str, list[PeerSample]] = {name: [] for name in measures}
    task = progress.add_task(f"{encoder}: {traffic.title}", total=rounds * len(measures))
    for order in in_turn(measures, rounds):
        for name in order:
            samples[name].append(measures[name]())
            progress.advance(task)
    return TextComparison(
        encoder=encoder,
        in_flight=traffic.in_flight,
        per_call=traffic.per_call,
        tokens=traffic.tokens,
        samples=samples,
        plans={name: str(plan) for name, plan in plans.items() if name in measures},
    )
