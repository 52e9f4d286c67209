"""The command line of every program, and the page and the data that it writes."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.machine import watch
from benchmarks.rounds import Condition, console, markdown_table
from polyhead_load.sweep.fingerprint import fingerprint

_TINY_SECONDS = 0.1
_MARKS = {True: "yes", False: "**no**", None: "not run"}


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every program."""
    made = argparse.ArgumentParser(description=doc, allow_abbrev=False)
    made.add_argument("--out", type=Path, default=Path("build/bench"), help="the folder of pages")
    made.add_argument("--models", type=Path, default=Path("build/bench-models"), help="what is exported")
    made.add_argument("--seconds", type=float, help="of each sample, or of the whole load")
    made.add_argument("--rounds", type=int, help="samples of each contender")
    made.add_argument("--tiny", action="store_true", help="tiny encoders, to try the code")
    return made


def begun(chosen: argparse.Namespace, *, seconds: float, rounds: int) -> argparse.Namespace:
    """Return what was chosen for a measurement that begins now.

    It has `spare`, the number of rounds that may be void, `fingerprint`, the machine, the versions and the
    command, and `disturbance`, which tells how the time since was disturbed.

    Args:
        chosen: What a parser of `options` gave.
        seconds: How long a sample lasts, if nothing was chosen.
        rounds: How many samples there are of each contender, if nothing was chosen.
    """
    if chosen.tiny:
        seconds, rounds = _TINY_SECONDS, 1
    begins = {
        "seconds": seconds if chosen.seconds is None else chosen.seconds,
        "rounds": rounds if chosen.rounds is None else chosen.rounds,
        "fingerprint": fingerprint(sys.argv),
        "disturbance": watch(),
    }
    spare = 0 if chosen.tiny else begins["rounds"]
    return argparse.Namespace(**{**vars(chosen), **begins, "spare": spare})


def in_rounds(chosen: argparse.Namespace) -> str:
    """Return how rows came about."""
    return (
        f"Medians of {chosen.rounds} rounds of {chosen.seconds:g} s or more, in each of which everyone takes "
        "a turn, in every second one backwards. “×” is of the same round: the median, with its 95 % interval "
        "(of fewer than six rounds the lowest and the highest)."
    )


def finish(
    chosen: argparse.Namespace,
    name: str,
    command: str,
    title: str,
    lines: Iterable[str],
    *,
    conditions: Sequence[Condition] = (),
    intro: Sequence[str] = (),
    facts: Mapping[str, Any],
) -> int:
    """Write a page and its data, show the conditions, and return 0 if none is missed.

    The page has the title, how, when, where and with what it was made, how quiet the machine was, the
    introduction, the conditions and then the lines. Of tiny encoders no condition counts.

    Args:
        chosen: What `begun` gave.
        name: Of the page's file.
        command: What makes the page again.
        title: The page's.
        lines: The rest of the page, in Markdown.
        conditions: What must hold.
        intro: Lines that come before the conditions.
        facts: The data: JSON values and data classes.
    """
    made, out = chosen.fingerprint, chosen.out / name
    versions = [f"{package} {made[package]}" for package in ("Python", "grpcio", "polyhead")]
    made_with = ", ".join([made["began"], f"{made['cores']} cores ({made['processor']})", *versions])
    disturbance = chosen.disturbance()
    tiny = ["**Tiny encoders, to try the code: the numbers mean nothing.**", ""] if chosen.tiny else []
    page = [
        f"# {title}",
        "",
        f"Made by `{command}` ([how](../../docs/benchmarks.md)): {made_with}. In all {disturbance}.",
        "",
        *tiny,
        *([*intro, ""] if intro else []),
        *markdown_table(
            {"what must hold": one.name, "": _MARKS[one.holds], "seen": one.seen} for one in conditions
        ),
        *lines,
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "fingerprint": made,
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
        "disturbance": disturbance,
        "conditions": conditions,
        **facts,
    }
    out.with_suffix(".json").write_text(json.dumps(result, indent=1, default=asdict) + "\n")
    out.with_suffix(".md").write_text("\n".join(page))
    if conditions:
        table = Table("", "what must hold", "seen")
        for one in conditions:
            table.add_row(_MARKS[one.holds].strip("*"), one.name, one.seen)
        console.print(table)
    console.print(f"{out}.json, .md")
    return 1 if not chosen.tiny and any(one.holds is False for one in conditions) else 0
