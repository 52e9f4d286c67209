"""The page of a check: targets first, then the results of each part."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rounds import markdown_table

Rows = Sequence[Mapping[str, Any]]
"""The results of one part."""

_TITLES = {
    "machine": "The machine",
    "families": "Exports",
    "parity": "Parity with PyTorch in fp32 on the CPU",
    "kernels": "Which kernel computes attention",
    "speed": "Against PyTorch, on one stream",
    "served": "Served",
}


def page(found: Mapping[str, Rows], *, tiny: bool) -> str:
    """Return the page in Markdown.

    Args:
        found: The results by part, in order.
        tiny: Whether the encoders are tiny ones, to try the code.
    """
    device = next((row["name"] for row in _of(found.get("machine", ()), "device")), "unknown")
    lines = [f"# {device}: polyhead's graphs", ""]
    lines += ["Made by `make gpu-check`. Ratios compare within this run; the rest is this machine's.", ""]
    if tiny:
        lines += ["**Tiny encoders, to try the code: the numbers mean nothing.**", ""]
    targets = [row for rows in found.values() for row in _of(rows, "target")]
    lines += ["## Targets", ""]
    lines += markdown_table(
        {"target": row["name"], "met": "yes" if row["met"] else "**no**", "seen": row["seen"]}
        for row in targets
    )
    for part, rows in found.items():
        lines += [f"## {_TITLES[part]}", "", *markdown_table(row["cells"] for row in _of(rows, "row"))]
        for row in _of(rows, "line"):
            lines += [row["text"], ""]
        problems = [f"- **{row['what']}**: {row['reason']}" for row in _of(rows, "problem")]
        lines += [*problems, ""] if problems else []
    return "\n".join(lines).rstrip() + "\n"


def _of(rows: Rows, kind: str) -> Rows:
    return [row for row in rows if row["kind"] == kind]
