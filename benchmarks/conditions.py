"""What must hold after a soak."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.table import Table

from payloads import ABANDONED
from servers import Metrics
from traffic import KINDS, TOLERANCE, Traffic
from watch import Sample, Slope

_GROWTH_MIB = 8.0
"""Growth of memory after the warm-up that counts as a leak, when it is sure to 95 %."""
_MINUTES = 10
"""What is looked at for less says nothing of leaks: allocators still find their size."""
_LOOSE = 3
"""By how much the median of open files and threads may differ from one third of the run to the next."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something that must hold."""

    name: str
    holds: bool
    seen: str


def table_of(conditions: Sequence[Condition]) -> Table:
    """Return a table for the terminal."""
    table = Table("", "what must hold", "seen")
    for condition in conditions:
        table.add_row("[green]yes" if condition.holds else "[bold red]no", condition.name, condition.seen)
    return table


def rows_of(conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows of a table in Markdown."""
    return [
        "| what must hold | | seen |",
        "|---|---|---|",
        *(f"| {one['name']} | {'yes' if one['holds'] else '**no**'} | {one['seen']} |" for one in conditions),
    ]


class Tally(NamedTuple):
    """What became of a model's requests."""

    succeeded: int
    failed: int
    sequences: int

    def since(self, before: "Tally") -> "Tally":
        """Return what was added since."""
        return Tally(*(new - old for new, old in zip(self, before, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the server has counted."""

    metrics: Metrics
    statistics: dict[str, Tally]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that is known when the load is over."""

    traffic: Traffic
    samples: list[Sample]
    before: Sample
    after: Sample
    counted_before: Counted
    counted_after: Counted
    rate: float
    seconds: float
    server_cores: float
    client_cores: float
    memory: Slope


def judge(run: Run) -> list[Condition]:
    """Return every condition of a soak."""
    return [*judge_answers(run), *judge_counters(run), *judge_resources(run)]


def judge_answers(run: Run) -> list[Condition]:
    """Judge whether every call had one answer, and the right one."""
    traffic = run.traffic
    wrong = [
        f"{number} × {kind}: {code}"
        for (kind, code), number in traffic.counts.items()
        if code not in KINDS[kind].expected
    ]
    return [
        Condition(
            name="every call ended as calls of its kind may, and within a minute",
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
            holds={kind for kind, _ in traffic.counts} == set(KINDS),
            seen=f"{len({kind for kind, _ in traffic.counts})} of {len(KINDS)}",
        ),
    ]


def judge_counters(run: Run) -> list[Condition]:
    """Judge whether the server's counters and ours are the same."""
    traffic, gone = run.traffic, ABANDONED.name
    counted = {
        model: values.since(run.counted_before.statistics[model])
        for model, values in run.counted_after.statistics.items()
    }
    ours = {
        model: Tally(
            traffic.succeeded[model],
            sum(number for (failed, _), number in traffic.failed.items() if failed == model),
            traffic.sequences[model],
        )
        for model in counted
        if not model.startswith(gone)
    }
    requests = ("polyhead_requests_total", "model", "code")
    codes = run.counted_after.metrics.by(*requests) - run.counted_before.metrics.by(*requests)
    internal = sum(number for (_, code), number in codes.items() if code == "INTERNAL")
    codes = Counter({key: number for key, number in codes.items() if not key[0].startswith(gone)})
    answers: Counter[tuple[str, ...]] = Counter({(model, "OK"): n for model, n in traffic.succeeded.items()})
    answers.update(traffic.failed)
    successes = sum(counted[model].succeeded for model in counted if model.startswith(gone))
    failures = sum(counted[model].failed for model in counted if model.startswith(gone))
    return [
        Condition(
            name="statistics: successes, failures and sequences are ours, model by model",
            holds=all(counted[model] == values for model, values in ours.items()),
            seen="; ".join(
                f"{model} {succeeded:,}, {failed:,}, {sequences:,}"
                + ("" if ours[model] == counted[model] else f" (ours: {ours[model]})")
                for model, (succeeded, failed, sequences) in sorted(counted.items())
                if model in ours
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
        # A caller who leaves may do so before its request arrives or after its reply has left.
        Condition(
            name="callers who left: none counted twice, no arrived answer uncounted",
            holds=traffic.ended_well <= successes and successes + failures <= traffic.begun,
            seen=f"{traffic.ended_well:,} answers arrived ≤ {successes:,} counted; "
            f"with {failures:,} failures ≤ {traffic.begun:,} calls begun",
        ),
        Condition(name="no INTERNAL", holds=internal == 0, seen=f"{internal} requests"),
    ]


def judge_resources(run: Run) -> list[Condition]:
    """Judge whether anything grows."""
    memory, third = run.memory, len(run.samples) // 3
    short = memory.seconds < 60 * _MINUTES

    def medians(of: str) -> tuple[float, float]:
        values = [getattr(sample, of) for sample in run.samples]
        return _median(values[third : 2 * third]), _median(values[2 * third :])

    files, threads = medians("fds"), medians("threads")
    return [
        Condition(
            name=f"memory: growth after the warm-up is not surely more than {_GROWTH_MIB:g} MiB",
            holds=short or memory.grown_for_sure <= _GROWTH_MIB,
            seen=f"{memory.per_hour:+.1f} MiB/h ({memory.low:+.1f} to {memory.high:+.1f}), "
            f"peak {max(sample.rss_mib for sample in run.samples):.0f} MiB"
            + (", too short a run to judge by" if short else ""),
        ),
        Condition(
            name="open files are flat, and return to what they were",
            holds=abs(files[1] - files[0]) <= _LOOSE and run.after.fds <= run.before.fds,
            seen=f"medians {files[0]:g}, {files[1]:g}; before {run.before.fds}, after {run.after.fds}",
        ),
        Condition(
            name="threads are flat",
            holds=abs(threads[1] - threads[0]) <= _LOOSE,
            seen=f"medians {threads[0]:g}, {threads[1]:g}; before {run.before.threads}, "
            f"after {run.after.threads}",
        ),
    ]


def _median(values: Sequence[float]) -> float:
    return float(sorted(values)[len(values) // 2])
