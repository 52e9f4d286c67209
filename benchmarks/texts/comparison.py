"""Measure everyone under each load, and what comes of it on a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.frame import (
    Condition,
    Rounds,
    Sample,
    at_least,
    compare,
    console,
    markdown_table,
)
from benchmarks.in_process import CORES, WAYS
from benchmarks.texts.batches import BatchPlan, Ids, Sequences
from benchmarks.texts.engines import EngineModel
from benchmarks.texts.lineup import PADDED, POLYHEAD, Cosines, Footprint, TextLineup
from benchmarks.texts.workers import plans_of

PER_LIST = 32
AS_THEY_COME = f"{PADDED}, batches of {PER_LIST} as they come"
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

    @property
    def title(self) -> str:
        """It in words."""
        calls = "one call at a time" if self.in_flight == 1 else f"{self.in_flight} calls in flight"
        if self.tokens is not None:
            return f"B × T = {self.per_call} × {self.tokens}, {calls}"
        return f"{f'Lists of {self.per_call}' if self.per_call > 1 else 'Single'} texts, {calls}"


class Least(NamedTuple):
    """The least ratio of rates."""

    name: str
    others: str
    """How the names begin of those of which the strongest is meant."""
    ratio: float


@dataclass(frozen=True, kw_only=True)
class TextComparison(Rounds):
    """All rounds of one traffic."""

    traffic: TextTraffic
    plans: Mapping[str, str] = field(default_factory=dict)
    """How engines in process batch, by name."""

    def judge(self, wanted: Sequence[Least]) -> list[Condition]:
        """Return which ratios are reached; what takes no part is not judged."""
        found = []
        for name, prefix, ratio in wanted:
            others = [other for other in self.samples if other.startswith(prefix)]
            if name in self.samples and others:
                other = self.strongest(others)
                found.append(
                    at_least(f"{self.traffic.title}: {name}", ratio, other, self.ratios(name, other))
                )
        return found

    def lines(self) -> list[str]:
        """Return its table, with its heading."""
        return [
            f"### {self.traffic.title}",
            "",
            *markdown_table(
                self.row(name, POLYHEAD) | {"plan": self.plans.get(name, "")} for name in self.samples
            ),
        ]


def needs(footprints: Mapping[str, Footprint], cosines: Mapping[str, Cosines]) -> list[str]:
    """Return the table of memory, first answer and precision, with its heading."""
    return [
        "### Memory, first answer, and precision",
        "",
        *markdown_table(
            {
                "": name,
                "memory, MiB": f"{footprints[name].memory_mib:.0f}" if name in footprints else "",
                "first answer, s": f"{footprints[name].first_answer_seconds:.1f}"
                if name in footprints
                else "",
                "lowest cosine": f"{cosine.lowest:.5f}",
                "mean cosine": f"{cosine.mean:.5f}",
            }
            for name, cosine in cosines.items()
        ),
    ]


def equal_plans(model: EngineModel, traffic: TextTraffic) -> list[list[BatchPlan]]:
    """Return a plan for each way to run calls of equal lengths: calls as a whole, unless lanes would idle."""
    plans = [
        BatchPlan(batch=min(traffic.per_call, -(-traffic.at_once // lanes)), lanes=lanes, threads=threads)
        for lanes, threads in WAYS
    ]
    return [plans[:1] if model.kind == "sentence-transformers" else plans]


def sequences_of(traffic: TextTraffic, texts: Sequence[str]) -> Sequences:
    """Return what a load sends: the texts, or one round of random token ids."""
    if traffic.tokens is None:
        return texts
    shape = (max(8, traffic.at_once), traffic.tokens)
    ids: list[Ids] = np.random.default_rng(0).integers(*_VOCABULARY, shape).tolist()
    return ids


def measure(
    lineup: TextLineup,
    loads: Sequence[TextTraffic],
    texts: Sequence[str],
    *,
    seconds: float,
    rounds: int,
    batch_sizes: Sequence[int],
    at_once: Callable[[TextTraffic], int] = lambda traffic: traffic.at_once,
) -> list[TextComparison]:
    """Measure everyone in turn, under each load.

    Args:
        lineup: Those who take part.
        loads: The loads.
        texts: Those of natural lengths.
        seconds: For each sample.
        rounds: Turns of each.
        batch_sizes: What engines in process may run texts of natural lengths in.
        at_once: Returns how many sequences an engine in process gets at once.
    """
    plans: dict[tuple[bool, int], dict[str, BatchPlan]] = {}
    found = []
    for traffic in loads:
        count, sequences, natural = at_once(traffic), sequences_of(traffic, texts), traffic.tokens is None
        if (natural, count) not in plans:
            with console.status(f"searching plans: {traffic.title}"):
                plans[natural, count] = {
                    worker.name: worker.search(
                        sequences,
                        plans_of(worker.model, count, batch_sizes)
                        if natural
                        else equal_plans(worker.model, traffic),
                        per_call=count,
                        seconds=seconds / 4,
                    )
                    for worker in lineup.workers
                }
        ways = {worker.name: (worker, plans[natural, count][worker.name]) for worker in lineup.workers}
        if natural:
            ways[AS_THEY_COME] = (ways[PADDED][0], BatchPlan(batch=PER_LIST, threads=CORES))

        measures: dict[str, Callable[[], Sample]] = {
            server.name: partial(
                server.measure,
                sequences,
                per_call=traffic.per_call,
                in_flight=traffic.in_flight,
                seconds=seconds,
            )
            for server in lineup.servers
            if server.max_batch >= traffic.per_call
        }
        measures |= {
            name: partial(worker.measure, sequences, plan, per_call=count, seconds=seconds)
            for name, (worker, plan) in ways.items()
        }
        found.append(
            TextComparison(
                traffic=traffic,
                samples=compare(traffic.title, measures, rounds),
                plans={name: str(plan) for name, (_, plan) in ways.items()},
            )
        )
    return found
