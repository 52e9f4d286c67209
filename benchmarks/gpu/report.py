"""The page and the data of a check: what was found, which targets were met, and what was not done."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from gpu.journal import Found, facts_of
from gpu.markdown import table
from gpu.sections import section
from gpu.targets import Target

_TITLES = {
    "environment": "The machine",
    "export": "Exports",
    "parity": "Parity with PyTorch in fp32",
    "engine": "The server's engine against onnxruntime alone",
    "kernels": "Which kernel computes attention",
    "table": "Against PyTorch, in one process",
    "served": "Served",
    "heads": "Head counts",
    "memory": "Memory",
}
_MET = {True: "yes", False: "**no**", None: "–"}


def page(found: Mapping[str, Found], targets: Sequence[Target], *, tiny: bool) -> str:
    """For people."""
    lines = [
        f"# {card_of(found) or 'A GPU'}: polyhead's graphs",
        "",
        "Made by `make gpu-check`. Ratios compare within this run; the rest is this machine's.",
        "",
    ]
    if tiny:
        lines += ["**A try-out of the code with tiny encoders: the numbers mean nothing.**", ""]
    lines += ["## Targets", ""]
    lines += table(("target", "met", "seen"), ((one.name, _MET[one.met], one.seen) for one in targets))
    lines += ["## Parts", ""]
    lines += table(
        ("part", "", "seconds", "allowed"),
        (
            (
                part,
                one.state + (f": {one.problem}" if one.problem else ""),
                f"{one.seconds:.0f}",
                f"{one.allowed:.0f}",
            )
            for part, one in found.items()
        ),
    )
    for part, one in found.items():
        lines += [f"## {_TITLES[part]}", "", *section(part, one)]
        lines += [f"- {note}" for note in one.notes]
        lines.append("")
    return _joined(lines)


def write(out: Path, found: Mapping[str, Found], targets: Sequence[Target], *, tiny: bool) -> None:
    """Writes `out`.md and `out`.json, each whole or as it was."""
    out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"targets": [asdict(one) for one in targets], "parts": facts_of(found), "tiny": tiny}
    _replace(out.with_name(f"{out.name}.json"), json.dumps(facts, indent=2) + "\n")
    _replace(out.with_name(f"{out.name}.md"), page(found, targets, tiny=tiny))


def card_of(found: Mapping[str, Found]) -> str | None:
    """What the card is called, once that is known."""
    rows = found["environment"].of("machine") if "environment" in found else []
    return str(rows[0]["card"]) if rows else None


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def _joined(lines: Sequence[str]) -> str:
    """Lines with no two empty ones behind one another."""
    kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
    return "\n".join(kept).rstrip() + "\n"
