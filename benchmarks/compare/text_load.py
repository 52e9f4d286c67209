"""Measure servers and engines that embed texts, in turn, under each load."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.compare.lineup import PADDED, TextLineup
from benchmarks.engines.backends import EngineModel
from benchmarks.engines.plans import BatchPlan, Ids, Sequences
from benchmarks.engines.processes import CORES, WAYS, EngineWorker, plans_of, search
from benchmarks.rounds import Comparison, Sample, compare, console

PER_LIST = 32
AS_THEY_COME = f"{PADDED}, batches of {PER_LIST} as they come"
_BATCH_SIZES = (1, 4, 8, 16, 32, 64)
_VOCABULARY = (1000, 30000)
"""Ids of ordinary tokens."""


@dataclass(frozen=True, kw_only=True)
class TextTraffic:
    """A load of calls."""

    per_call: int
    """Sequences of each call."""
    in_flight: int
    tokens: int | None = None
    """T of sequences that are given as token ids; None for texts of natural lengths."""

    @property
    def at_once(self) -> int:
        """Sequences of all calls in flight."""
        return self.per_call * self.in_flight

    def __str__(self) -> str:
        calls = "one call at a time" if self.in_flight == 1 else f"{self.in_flight} calls in flight"
        if self.tokens is not None:
            return f"B × T = {self.per_call} × {self.tokens}, {calls}"
        return f"{f'lists of {self.per_call}' if self.per_call > 1 else 'single'} texts, {calls}"

    def sequences(self, texts: Sequence[str]) -> Sequences:
        """Return what is sent: the texts, or one round of random token ids."""
        if self.tokens is None:
            return texts
        shape = (max(8, self.at_once), self.tokens)
        ids: list[Ids] = np.random.default_rng(0).integers(*_VOCABULARY, shape).tolist()
        return ids

    def plans(self, model: EngineModel, at_once: int) -> list[list[BatchPlan]]:
        """Return the plans that an engine may run so many sequences by, in groups of ascending batch size.

        Of equal lengths, calls run as a whole, unless lanes would idle. sentence-transformers sorts by
        itself, and runs one batch at a time.
        """
        if self.tokens is None:
            alone = model.kind == "sentence-transformers"
            sizes = [size for size in _BATCH_SIZES if size <= at_once]
            ways = WAYS[:1] if alone else WAYS
            return [group for way in ways for group in plans_of(way, sizes, sorted_too=not alone)]
        return [
            [
                BatchPlan(batch=min(self.per_call, -(-self.at_once // lanes)), lanes=lanes, threads=threads)
                for lanes, threads in WAYS
            ]
        ]


def measure(
    lineup: TextLineup,
    traffic: TextTraffic,
    texts: Sequence[str],
    chosen: Namespace,
    *,
    title: str,
    at_once: int,
) -> Comparison:
    """Measure everyone in turn under a load; the plans of engines in process are searched before.

    Args:
        lineup: Those who take part.
        traffic: The load.
        texts: Those of natural lengths.
        chosen: How long and how often.
        title: What it is called.
        at_once: How many sequences an engine in process gets at once.
    """
    sequences = traffic.sequences(texts)
    with console.status(f"searching plans: {title}"):
        ways = {
            worker.name: (worker, _search(worker, traffic, sequences, at_once, chosen.seconds / 4))
            for worker in lineup.workers
            if traffic.tokens is None or worker.model.kind != "sentence-transformers"
        }
    if traffic.tokens is None:
        ways[AS_THEY_COME] = (ways[PADDED][0], BatchPlan(batch=PER_LIST, threads=CORES))
    measures: dict[str, Callable[[], Sample]] = {
        server.name: partial(
            server.contender.load_closed,
            server.requests(sequences, traffic.per_call),
            traffic.in_flight,
            chosen.seconds,
            traffic.per_call,
        )
        for server in lineup.servers
    }
    measures |= {
        name: partial(worker.measure, sequences, plan, per_call=at_once, seconds=chosen.seconds)
        for name, (worker, plan) in ways.items()
    }
    comparison = compare(title, measures, chosen.rounds, spare=chosen.spare)
    return replace(comparison, notes={name: str(plan) for name, (_, plan) in ways.items()})


def _search(
    worker: EngineWorker, traffic: TextTraffic, sequences: Sequences, at_once: int, seconds: float
) -> BatchPlan:
    """Search for an engine's fastest plan."""

    def run(plan: BatchPlan) -> Sample:
        speed = worker.measure(sequences, plan, per_call=at_once, seconds=seconds)
        return replace(speed, p50_ms=speed.p50_ms * plan.batch / at_once)  # of a batch

    return search(traffic.plans(worker.model, at_once), run)[0]
