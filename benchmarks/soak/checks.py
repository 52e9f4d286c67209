"""The conditions that a soak must meet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

import numpy as np

from benchmarks.rounds import Condition
from benchmarks.soak.counters import ModelCounts, ServerCounters, ServerSample
from benchmarks.soak.traffic import CALL_SECONDS, KINDS, TOLERANCE, Traffic

_GROWTH_MIB = 8.0
"""Growth of memory from the second third of a run to the last that counts as a leak."""
_MINUTES = 10
"""Shorter observations say nothing of leaks: allocators still find their size."""
_SPREAD = 3
"""How much the median of open files and threads may differ from one third of the run to the next."""


@dataclass(frozen=True, kw_only=True)
class SoakRun:
    """Everything that is known when the load is over."""

    traffic: Traffic
    samples: Sequence[ServerSample]
    before: ServerSample
    after: ServerSample
    counters_before: ServerCounters
    counters_after: ServerCounters
    rate: float
    """Calls per second."""
    seconds: float
    server_cores: float
    client_cores: float


def judge(run: SoakRun) -> list[Condition]:
    """Return every condition."""
    return [*_replies(run), *_counters(run), *_resources(run)]


def _replies(run: SoakRun) -> list[Condition]:
    """Judge whether every call had one reply, and the right one."""
    traffic = run.traffic
    kinds = {kind for kind, _ in traffic.counts}
    wrong = [
        f"{number} × {kind}: {code}"
        for (kind, code), number in traffic.counts.items()
        if code not in KINDS[kind].expected
    ]
    return [
        Condition(
            name=f"every call ended as calls of its kind may, and within {CALL_SECONDS:.0f} s",
            holds=not wrong,
            seen=", ".join(wrong) or f"{traffic.counts.total():,} calls",
        ),
        Condition(
            name="replies are those of a quiet server",
            holds=traffic.worst <= TOLERANCE and traffic.exact + traffic.near > 0,
            seen=f"{traffic.exact:,} to the bit, {traffic.near:,} within {traffic.worst:.1e}",
        ),
        Condition(
            name="nothing is left in flight",
            holds=run.after.in_flight == 0,
            seen=f"{run.after.in_flight} requests",
        ),
        Condition(
            name="each kind of traffic took part",
            holds=kinds == set(KINDS),
            seen=f"{len(kinds)} of {len(KINDS)}",
        ),
    ]


def _counters(run: SoakRun) -> list[Condition]:
    """Judge whether server and clients count the same."""
    traffic = run.traffic
    statistics = {
        model: counts.since(run.counters_before.statistics[model])
        for model, counts in run.counters_after.statistics.items()
    }
    left = [statistics.pop(model) for model in list(statistics) if model.startswith(traffic.abandoned)]
    successes, failures = sum(each.succeeded for each in left), sum(each.failed for each in left)
    ours = {
        model: ModelCounts(
            traffic.succeeded[model],
            sum(number for (failed, _), number in traffic.failed.items() if failed == model),
            traffic.sequences[model],
        )
        for model in statistics
    }
    requests = ("polyhead_requests_total", "model", "code")
    codes = run.counters_after.metrics.by(*requests) - run.counters_before.metrics.by(*requests)
    internal = sum(number for (_, code), number in codes.items() if code == "INTERNAL")
    codes = Counter(
        {key: number for key, number in codes.items() if not key[0].startswith(traffic.abandoned)}
    )
    answers: Counter[tuple[str, ...]] = Counter({(model, "OK"): n for model, n in traffic.succeeded.items()})
    answers.update(traffic.failed)
    return [
        Condition(
            name="statistics: successes, failures and sequences are ours, model by model",
            holds=statistics == ours,
            seen="; ".join(
                f"{model} {counts.succeeded:,}, {counts.failed:,}, {counts.sequences:,}"
                + ("" if ours[model] == counts else f" (ours: {ours[model]})")
                for model, counts in sorted(statistics.items())
            ),
        ),
        Condition(
            name="metrics: requests by model and status are ours",
            holds=codes == answers,
            seen=f"{codes.total():,} counted, {answers.total():,} ours"
            + "".join(
                f"; {key}: {codes[key]} ≠ {answers[key]}"
                for key in codes | answers
                if codes[key] != answers[key]
            ),
        ),
        # Callers may leave before their request arrives, or after the reply has left.
        Condition(
            name="callers that left: none counted twice, no arrived answer uncounted",
            holds=traffic.ended_well <= successes and successes + failures <= traffic.begun,
            seen=f"{traffic.ended_well:,} answers arrived ≤ {successes:,} counted; "
            f"with {failures:,} failures ≤ {traffic.begun:,} calls begun",
        ),
        Condition(name="no INTERNAL", holds=internal == 0, seen=f"{internal} requests"),
    ]


def _resources(run: SoakRun) -> list[Condition]:
    """Judge whether anything grows from the second third of the run to the last."""
    third = len(run.samples) // 3

    def thirds(field: str) -> tuple[list[float], list[float]]:
        values = [getattr(sample, field) for sample in run.samples]
        return values[third : 2 * third], values[2 * third :]

    files, threads = ([*map(median_high, thirds(field))] for field in ("fds", "threads"))
    # How much allocators keep of what was freed varies, so that the median may jump. A leak raises both ends.
    (low, high), (low_at_end, high_at_end) = (
        np.percentile(part, (5, 95)).tolist() for part in thirds("rss_mib")
    )
    short = run.seconds < 60 * _MINUTES
    return [
        Condition(
            name=f"the 5th or the 95th percentile of memory grows by at most {_GROWTH_MIB:g} MiB",
            holds=short or min(low_at_end - low, high_at_end - high) <= _GROWTH_MIB,
            seen=f"from {low:.1f} and {high:.1f} to {low_at_end:.1f} and {high_at_end:.1f} MiB"
            + (", too short a run to judge by" if short else ""),
        ),
        Condition(
            name="open files are flat, and return to what they were",
            holds=abs(files[1] - files[0]) <= _SPREAD and run.after.fds <= run.before.fds,
            seen=f"medians {files[0]:g}, {files[1]:g}; before {run.before.fds}, after {run.after.fds}",
        ),
        Condition(
            name="threads are flat",
            holds=abs(threads[1] - threads[0]) <= _SPREAD,
            seen=f"medians {threads[0]:g}, {threads[1]:g}",
        ),
    ]
