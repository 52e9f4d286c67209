"""Say which configurations to choose from, in the terminal and on the page."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from polyhead_load.fleet.recommendation import CLOSE, Option, recommendations
from polyhead_load.fleet.sizing import TooSlowError
from polyhead_load.report.formatting import count, described, number, size, spread
from polyhead_load.report.tables import compact_table
from polyhead_load.sweep.intervals import FEWEST_BLOCKS
from polyhead_load.sweep.spec import Dimension, ServiceTarget, Sweep


def choose_table(
    options: Sequence[Option], varied: Sequence[Dimension], target: ServiceTarget | None
) -> Table:
    """Return the table to choose from, which fits into 80 columns."""
    title = "Choose" if target is None else f"Choose: {target}"
    asked = () if target is None else ("headroom", "p99 ms", "most/s")
    table = compact_table(title, "configuration", *asked, "capacity/s", "param.", "reply", min_width=8)
    for one in options:
        name = "\n".join(described(dimension, one.labels[dimension]) for dimension in varied)
        interval = one.capacity_interval
        capacity = _with_interval(number(one.capacity), spread(interval) if interval else "")
        about = [capacity, count(one.parameters), size(one.reply_bytes)]
        if target is not None:
            about = ["\n".join(headroom_cell(one)), _with_interval(*p99_cell(one)), most_cell(one), *about]
        table.add_row(name, *about)
    return table


def choose_lines(
    options: Sequence[Option], varied: Sequence[Dimension], target: ServiceTarget | None
) -> Iterator[str]:
    """Yield what the table to choose from comes to, and what its words mean."""
    if target is None:
        return
    yield from recommendations(options, varied, target)
    if any(one.verdict == "close" for one in options):
        yield (
            f"close: within the {CLOSE - 1:.0%} by which such predictions have been off, or within the "
            "interval of the capacity"
        )
    yield from dict.fromkeys(f"not known: {one.error}" for one in options if one.verdict == "unknown")


def next_steps(sweep: Sweep, target: ServiceTarget | None, run: Path) -> Iterator[str]:
    """Yield what to do after a sweep."""
    where = shlex.quote(str(run))
    if sweep.blocks < FEWEST_BLOCKS:
        yield (
            f"fewer than {FEWEST_BLOCKS} blocks show that measuring works, not what differs; `polyhead sweep "
            "heads` compares 1 to 24 heads, `polyhead sweep presets` lists more, with --rate 50 --p99 20ms "
            "they say which configurations hold that"
        )
    elif target is None:
        yield f"`polyhead sweep report {where} --rate 50 --p99 20ms` says which configurations hold that"
    else:
        yield (
            f"`polyhead plan {where} --rate {target.rate!r} --p99 {target.p99}"
            f"{''.join(f' --{name} …' for name in sweep.varied)}` says what the choice rests on, and how "
            "sure it is"
        )


def headroom_cell(one: Option) -> tuple[str, str]:
    """Return how much more than the target's rate one machine carries, and what that means."""
    if one.plan is None:
        return "–", "not known" if one.verdict == "unknown" else one.verdict
    headroom, machines = f"{number(one.headroom)} ×", one.plan.fleet.machines
    return headroom, one.verdict if one.verdict != "no" else f"{machines:,} machines"


def p99_cell(one: Option) -> tuple[str, str]:
    """Return the p99 of a machine at its share of the rate, or the best that it can do, and its interval."""
    if one.plan is not None:
        p99 = one.plan.fleet.usual.p99
    elif isinstance(one.error, TooSlowError):
        p99 = one.error.alone.p99
    else:
        return "", ""
    return number(1e3 * p99.value), spread(p99.times(1e3))


def most_cell(one: Option) -> str:
    """Return the most requests a second that one machine carries within the limit."""
    return "" if one.plan is None else number(one.plan.fleet.most.rate)


def _with_interval(value: str, ends: str) -> str:
    return f"{value}\n({ends})" if ends else value
