"""The parts by name, what each needs, and how one is run."""

import importlib
from collections.abc import Callable, Sequence
from typing import cast

from gpu.part import Bench
from gpu.plan import Family, Plan

_MODULES = {
    "environment": "gpu.environment",
    "parity": "gpu.parity",
    "engine": "gpu.engine",
    "kernels": "gpu.kernels",
    "table": "gpu.table",
    "served": "gpu.served",
    "heads": "gpu.heads",
    "memory": "gpu.memory",
}


def run_part(bench: Bench) -> None:
    """Runs the part that the bench is for. Each is imported when it runs: it may need what others do not."""
    run = cast("Callable[[Bench], None]", importlib.import_module(_MODULES[bench.part]).run)
    with bench.card.stream():
        run(bench)


def needed_by(plan: Plan, parts: Sequence[str]) -> list[Family]:
    """The families that these parts measure, those first that take longest to export."""
    needs: dict[str, Sequence[Family]] = {
        "parity": plan.compared,
        "engine": (plan.served,),
        "table": plan.tabled,
        "served": (plan.served,),
        "heads": tuple(plan.head_families().values()),
        "memory": plan.tabled,
    }
    wanted = {family.key for part in parts for family in needs.get(part, ())}
    return [family for family in plan.families() if family.key in wanted]
