"""Under which conditions a run was measured, for the page."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from polyhead_load.report.findings import Findings
from polyhead_load.sweep.journal import Measurement


def constants(findings: Findings) -> list[tuple[str, str]]:
    """What is the same in all cells, and how it was measured."""
    sweep, facts = findings.sweep, findings.facts
    same = {
        name: ", ".join(sweep.labels(name))
        for name in ("tokens", "batch", "attention")
        if name not in findings.varied
    }
    encoders = [about.get("encoder", {}) for about in facts.get("families", {}).values()]
    shared = {
        name: value
        for name, value in (encoders[0] if encoders else {}).items()
        if all(encoder.get(name) == value for encoder in encoders)
    }
    words = {
        "encoder": ", ".join(f"{name} = {value}" for name, value in shared.items()),
        "T, tokens": same.get("tokens", ""),
        "B, sequences in a request": same.get("batch", ""),
        "attention in the reply": same.get("attention", ""),
        "runs on": ", ".join(sorted(set(facts.get("providers", {}).values()))),
        "server": facts.get("server", ""),
        "measured": f"{sweep.blocks} blocks of {sweep.seconds:g} s for each cell, seed {sweep.seed}",
        "gates": ", ".join(f"{name} {value:g}" for name, value in sweep.gates.model_dump().items()),
        "not checked": _unchecked(findings),
        "generator's priority": _values(one.generator_priority for one in _valid(findings)),
        "begun": "; ".join(_session(session) for session in facts.get("sessions", []) if session),
    }
    return [(name, value) for name, value in words.items() if value]


def _valid(findings: Findings) -> list[Measurement]:
    return [one for row in findings.rows for one in row.valid]


def _unchecked(findings: Findings) -> str:
    """Gates that some runs had too few answers for."""
    counts = Counter(gate for one in _valid(findings) for gate in one.unchecked)
    runs = len(_valid(findings))
    return ", ".join(f"{gate}: in {count} of {runs} runs, too few answers" for gate, count in counts.items())


def _values(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value is not None}))


def _session(facts: Mapping[str, Any]) -> str:
    first, *others = facts.items()
    return ", ".join([str(first[1]), *(f"{name} {value}" for name, value in others)])


def graphs(found: Mapping[str, Any]) -> dict[str, Any]:
    """A table of operators, the most frequent first: families with the same graph share a row."""
    if "problem" in found or not found:
        return {"problem": found.get("problem", ""), "rows": []}
    rows: dict[tuple[Any, ...], list[str]] = {}
    for family, kinds in found.items():
        for kind, graph in kinds.items():
            counts = sorted(graph["operators"].items(), key=lambda one: (-one[1], one[0]))
            operators = ", ".join(f"{count} {name}" for name, count in counts)
            rows.setdefault((kind, graph["kernel"], graph["optimised"], operators), []).append(family)
    return {
        "problem": "",
        "rows": [
            {
                "families": ", ".join(families),
                "graph": kind + ("" if optimised else ", as exported"),
                "kernel": kernel,
                "operators": operators,
            }
            for (kind, kernel, optimised, operators), families in rows.items()
        ],
    }
