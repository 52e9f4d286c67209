"""What benchmarks share from end to end: options, the fingerprint, conditions, and the files of a result."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from polyhead_load.sweep.fingerprint import fingerprint

console = Console()
if not console.is_terminal:
    console.width = 140


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition that a run must meet."""

    name: str
    holds: bool
    seen: str


SERVE_FLAGS = "Other flags are `polyhead serve`'s."
"""The epilog of a parser that knows not all of its arguments."""


def options(
    doc: str | None, name: str, *, models: str | None = None, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    Args:
        doc: What the benchmark does.
        name: What its files are called.
        models: Whose model repository it shares, if it has none of its own.
        epilog: More of the help.
    """
    made = argparse.ArgumentParser(description=doc, epilog=epilog)
    made.add_argument("--models", type=Path, default=Path(f"build/{models or name}-models"))
    made.add_argument("--out", type=Path, default=Path(f"build/bench/{name}"), help="without its ending")
    return made


def spell_number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spell_ratios(ascending: Sequence[float]) -> str:
    """Return the median of the rounds' ratios, with the lowest and the highest."""
    return f"{median(ascending):.2f} ({ascending[0]:.2f}–{ascending[-1]:.2f})"


def markdown_table(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the lines of a table whose columns are the rows' keys; nothing without rows."""
    lines: list[str] = []
    for row in rows:
        if not lines:
            lines += ["| " + " | ".join(row) + " |", "|" + "---|" * len(row)]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row.values()) + " |")
    return [*lines, ""] if lines else []


def conditions_rows(conditions: Sequence[Condition]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return markdown_table(
        {"what must hold": one.name, "": "yes" if one.holds else "**no**", "seen": one.seen}
        for one in conditions
    )


def heading(title: str, command: str, result: Mapping[str, Any]) -> list[str]:
    """Return the first lines of a page.

    Args:
        title: The page's.
        command: The target of `make`.
        result: With its fingerprint.
    """
    return [f"# {title}", "", f"Made by `make {command}`: {made_with(result['fingerprint'])}.", ""]


def made_with(facts: Mapping[str, Any]) -> str:
    """Return time, machine and versions of a fingerprint, in one line."""
    versions = (f"{name} {facts[name]}" for name in ("Python", "grpcio", "polyhead"))
    return ", ".join([facts["began"], f"{facts['cores']} cores ({facts['processor']})", *versions])


def with_fingerprint(result: Mapping[str, Any]) -> dict[str, Any]:
    """Add the machine, the versions and the command to a result."""
    return {"fingerprint": fingerprint(sys.argv), **result}


def write(out: Path, result: Mapping[str, Any], page: str) -> None:
    """Write a result as JSON and as a page.

    Args:
        out: The path of both, without its ending.
        result: JSON values and data classes.
        page: In Markdown.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(result, indent=1, default=asdict) + "\n")
    out.with_suffix(".md").write_text(page)
    console.print(f"{out}.json, .md")


def conclude(out: Path, result: Mapping[str, Any], page: str, conditions: Sequence[Condition]) -> int:
    """Show the conditions, write a result as `write` does, and return 0 if every condition holds."""
    table = Table("", "what must hold", "seen")
    for one in conditions:
        table.add_row("[green]yes" if one.holds else "[bold red]no", one.name, one.seen)
    console.print(table)
    write(out, result, page)
    return 0 if all(one.holds for one in conditions) else 1
