"""Parts that the benchmarks' reports share: conditions, the fingerprint, and the files of a result."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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


def spell_number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def conditions_table(conditions: Sequence[Condition]) -> Table:
    """Return a table for the terminal."""
    table = Table("", "what must hold", "seen")
    for condition in conditions:
        table.add_row("[green]yes" if condition.holds else "[bold red]no", condition.name, condition.seen)
    return table


def markdown_table(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the lines of a table whose columns are the rows' keys; nothing without rows."""
    lines: list[str] = []
    for row in rows:
        if not lines:
            lines += ["| " + " | ".join(row) + " |", "|" + "---|" * len(row)]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row.values()) + " |")
    return [*lines, ""] if lines else []


def conditions_rows(conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return markdown_table(
        {"what must hold": one["name"], "": "yes" if one["holds"] else "**no**", "seen": one["seen"]}
        for one in conditions
    )


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
        result: JSON values.
        page: In Markdown.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    out.with_suffix(".md").write_text(page)
    console.print(f"{out}.json, .md")
