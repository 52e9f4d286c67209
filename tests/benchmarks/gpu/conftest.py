"""The try-out's families, exported once, and what a part is given to run on the CPU."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.budget import Deadline
from gpu.card import open_card
from gpu.families import export
from gpu.journal import Found, Journal
from gpu.part import Bench
from gpu.parts import run_part
from gpu.plan import Plan, tiny

RunPart = Callable[..., Found]
"""Runs a part: `run("table", seconds=..., models=...)`."""


@pytest.fixture(scope="session")
def plan() -> Plan:
    return tiny("cpu")


@pytest.fixture(scope="session")
def models(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu-models")
    for family in plan.families():
        export(family, folder)
    return folder


@pytest.fixture
def run(plan: Plan, models: Path, tmp_path: Path) -> RunPart:
    """Runs a part in this process, and gives what it has found."""

    def run_it(part: str, *, seconds: float = 60.0, models: Path = models) -> Found:
        journal = Journal(tmp_path / "journal.jsonl")
        run_part(
            Bench(
                part=part,
                card=open_card("cpu"),
                plan=plan,
                models=models,
                journal=journal,
                deadline=Deadline(seconds),
            )
        )
        return journal.read()[part]

    return run_it
