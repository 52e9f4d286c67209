"""What the environment finds, and when there is nothing to go on with."""

from pathlib import Path

import pytest

from gpu.budget import Deadline
from gpu.card import Cpu, Kind, NoCardError
from gpu.environment import run
from gpu.journal import Journal
from gpu.part import Bench
from gpu.plan import Plan


class WithoutCuda(Cpu):
    """A card that torch can use, and onnxruntime cannot: it falls back to the CPU."""

    kind: Kind = "cuda"

    @property
    def name(self) -> str:
        return "NVIDIA Something"


def test_a_card_that_onnxruntime_cannot_use_is_none(plan: Plan, tmp_path: Path) -> None:
    bench = Bench(
        part="environment",
        card=WithoutCuda(),
        plan=plan,
        models=tmp_path,
        journal=Journal(tmp_path / "journal.jsonl"),
        deadline=Deadline(60.0),
    )

    with pytest.raises(NoCardError, match=r"does not run on NVIDIA Something.*polyhead doctor"):
        run(bench)
    assert bench.journal.read() == {}
