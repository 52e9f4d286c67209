"""What a check has found so far, line by line on disk: a crash keeps everything that was measured."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Row = dict[str, Any]
State = Literal["running", "done", "in part", "failed", "out of time"]

ESSENTIAL: Mapping[str, str] = {
    "environment": "peak",
    "parity": "graph",
    "engine": "engine",
    "kernels": "form",
    "table": "size",
    "served": "load",
    "heads": "heads",
    "memory": "step",
}
"""The kind of row that a part is there for: without a sound one it has failed, whatever else it wrote."""


@dataclass(kw_only=True)
class Found:
    """What one part has found."""

    state: State = "running"
    """A part that ended without a word is still "running": whoever ran it died."""
    seconds: float = 0.0
    allowed: float = 0.0
    """Its share of the time, in seconds."""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, and why; what failed while the rest went on."""
    problem: str | None = None
    """Why it failed."""

    def outcome(self, part: str) -> tuple[State, str | None]:
        """How this part, come to its end, did, and its problem where it has one."""
        kind = ESSENTIAL.get(part)
        if kind is not None and not any(_is_sound(row) for row in self.of(kind)):
            problems = [str(row["problem"]) for row in self.of(kind) if row.get("problem")]
            why = [*self.notes, *problems, f"it has no {kind}"]
            return "failed", f"nothing that matters was measured: {why[0]}"
        return ("in part" if self.notes else "done"), None

    def of(self, kind: str) -> list[Row]:
        """The rows of one kind."""
        return [row for row in self.rows if row["kind"] == kind]


class Journal:
    """Appends to a file; each line is on disk when a method returns, whatever happens next.

    Args:
        path: The file. Several processes may append to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def begin(self, part: str, allowed: float) -> None:
        """A part begins, with so many seconds."""
        self._write(part, "begin", allowed=allowed)

    def row(self, part: str, kind: str, facts: Mapping[str, Any]) -> None:
        """A part has measured something."""
        self._write(part, "row", row={"kind": kind, **facts})

    def note(self, part: str, text: str) -> None:
        """A part says what it did not do."""
        self._write(part, "note", text=text)

    def end(self, part: str, state: State, seconds: float, problem: str | None = None) -> None:
        """A part is over."""
        self._write(part, "end", state=state, seconds=seconds, problem=problem)

    def read(self) -> dict[str, Found]:
        """Everything so far, by part, in the order in which they began."""
        found: dict[str, Found] = {}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a process that was killed while it wrote
                continue
            one = found.setdefault(entry["part"], Found())
            if entry["entry"] == "begin":
                one.allowed = entry["allowed"]
            elif entry["entry"] == "row":
                one.rows.append(entry["row"])
            elif entry["entry"] == "note":
                one.notes.append(entry["text"])
            else:
                one.state, one.seconds, one.problem = entry["state"], entry["seconds"], entry["problem"]
        return found

    def _write(self, part: str, entry: str, **facts: Any) -> None:
        # NaN and infinity are no JSON: what is not a number is said in words.
        line = json.dumps({"part": part, "entry": entry, **_finite(facts)}, allow_nan=False)
        with self.path.open("a") as file:
            file.write(line + "\n")


def facts_of(found: Mapping[str, Found]) -> dict[str, Any]:
    """For JSON."""
    return {part: asdict(one) for part, one in found.items()}


def _is_sound(row: Row) -> bool:
    """Whether something was measured in it."""
    measured = (row[name] for name in ("ms", "layer_us", "replies") if name in row)
    return not row.get("problem") and all(measured)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value
