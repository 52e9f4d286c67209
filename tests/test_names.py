"""What the classes of the packages and of the benchmarks are called, and what two packages call alike."""

import ast
from collections import defaultdict
from pathlib import Path
from typing import get_args

from tests.test_imports import ARROWS

from polyhead_model import task_heads
from polyhead_proto.outputs import logits

ROOT = Path(__file__).parent.parent
FOLDERS = [*(ROOT / package / f"polyhead_{package}" for package in ARROWS), ROOT / "benchmarks"]


FOR_READING = ROOT / "model" / "polyhead_model" / "plain.py"
"""What is served, once more without options: it has the same names, and so have its parameters."""


def test_no_two_classes_share_a_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in FOLDERS for path in folder.rglob("*.py") if path != FOR_READING):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))

    assert len(found) > 100
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_what_a_model_says_of_scores_is_what_others_compute() -> None:
    """Neither of the two packages imports the other."""
    assert get_args(task_heads.ScoreActivation) == get_args(logits.ScoreActivation)
