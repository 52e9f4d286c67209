"""What was found is on disk, whatever becomes of those who found it."""

from pathlib import Path
from typing import Any

import pytest

from gpu.journal import Found, Journal, facts_of


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "journal.jsonl")
    journal.begin("table", 12.5)
    journal.row("table", "size", {"batch": 8, "ms": {"fast": 1.5}})
    journal.row("table", "peak", {"teraflops": 700.0})
    journal.note("table", "B = 128: left out")
    journal.end("table", "failed", 3.0, "it broke")

    found = Journal(journal.path).read()["table"]

    assert (found.state, found.allowed, found.seconds, found.problem) == ("failed", 12.5, 3.0, "it broke")
    assert found.of("size") == [{"kind": "size", "batch": 8, "ms": {"fast": 1.5}}]
    assert found.notes == ["B = 128: left out"]
    assert facts_of({"table": found})["table"]["rows"] == found.rows


def test_parts_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for part in ("environment", "table", "memory"):
        journal.begin(part, 1.0)
        journal.end(part, "done", 1.0)

    assert list(journal.read()) == ["environment", "table", "memory"]


def test_a_part_that_died_has_what_it_wrote(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.begin("served", 1.0)
    journal.row("served", "load", {"workers": 1})
    with journal.path.open("a") as file:
        file.write('{"part": "served", "entry": "row", "ro')

    found = journal.read()["served"]

    assert found.state == "running"
    assert [row["workers"] for row in found.rows] == [1]


def test_what_is_no_number_is_said_in_words(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.row("parity", "graph", {"output": float("inf"), "rest": [float("nan"), 1.0]})

    assert journal.read()["parity"].rows == [{"kind": "graph", "output": "inf", "rest": ["nan", 1.0]}]


def test_nothing_is_there_before_the_first_line(tmp_path: Path) -> None:
    assert Journal(tmp_path / "journal.jsonl").read() == {}


def test_what_was_left_out_shows_in_the_outcome() -> None:
    rows = [{"kind": "graph"}]

    assert Found(rows=rows).outcome("parity") == ("done", None)
    assert Found(rows=rows, notes=["bf16: left out"]).outcome("parity") == ("in part", None)
    assert Found().outcome("export") == ("done", None)  # everything was there


@pytest.mark.parametrize(
    ("part", "rows", "why"),
    [
        ("parity", [], "it has no graph"),
        ("served", [{"kind": "alone", "batch": 1}, {"kind": "server"}], "it has no load"),
        ("served", [{"kind": "load", "replies": 0, "errors": 512}], "it has no load"),
        ("kernels", [{"kind": "form", "problem": "RuntimeError: no"}], "RuntimeError: no"),
        ("table", [{"kind": "peak"}, {"kind": "size", "ms": {}}], "it has no size"),
        ("heads", [{"kind": "heads", "layer_us": {}}], "it has no heads"),
        ("memory", [{"kind": "weights"}], "it has no step"),
    ],
)
def test_a_part_without_what_it_is_there_for_has_failed(
    part: str, rows: list[dict[str, Any]], why: str
) -> None:
    assert Found(rows=rows).outcome(part) == ("failed", f"nothing that matters was measured: {why}")
    noted = Found(rows=rows, notes=["it broke", "again"]).outcome(part)
    assert noted == ("failed", "nothing that matters was measured: it broke")


def test_one_sound_row_is_enough() -> None:
    broken = {"kind": "form", "problem": "RuntimeError: no"}

    assert Found(rows=[broken, {"kind": "form", "ms": 0.1}]).outcome("kernels") == ("done", None)
