"""Families are exported side by side, and what fails or takes too long is said."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gpu.budget import Deadline
from gpu.card import open_card
from gpu.exporting import export_all
from gpu.journal import Found, Journal
from gpu.part import Bench
from gpu.plan import Family, Plan

_DONE = "import sys, pathlib; pathlib.Path(sys.argv[1]).mkdir(parents=True)"
_BROKEN = "raise SystemExit('it cannot be exported')"
_SLOW = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).parent.mkdir(parents=True); time.sleep(60)"


def export(plan: Plan, folder: Path, script: str, *, seconds: float = 30.0) -> Found:
    journal = Journal(folder / "journal.jsonl")
    bench = Bench(
        part="export",
        card=open_card("cpu"),
        plan=plan,
        models=folder / "models",
        journal=journal,
        deadline=Deadline(seconds),
    )

    def command(family: Family, threads: int) -> Sequence[str]:
        assert threads >= 1
        return [sys.executable, "-c", script, str(folder / "models" / family.key / family.key / "1")]

    export_all(bench, plan.families(), command)
    return journal.read()["export"]


def test_each_is_exported_and_only_once(plan: Plan, tmp_path: Path) -> None:
    found = export(plan, tmp_path, _DONE)

    assert {row["family"] for row in found.of("exported")} == {family.key for family in plan.families()}
    assert export(plan, tmp_path, _BROKEN).notes == []  # all there already


def test_one_that_fails_says_why(plan: Plan, tmp_path: Path) -> None:
    found = export(plan, tmp_path, _BROKEN)

    assert found.rows == []
    assert found.notes[0].endswith("not exported: it cannot be exported")
    assert len(found.notes) == len(plan.families())


def test_one_that_takes_too_long_leaves_nothing(plan: Plan, tmp_path: Path) -> None:
    found = export(plan, tmp_path, _SLOW, seconds=1.0)

    assert len(found.notes) == len(plan.families())
    assert all("the time for it is over" in note for note in found.notes)
    assert not any((tmp_path / "models").glob("*"))
