"""How far a sweep is."""

import io

import pytest
from rich.console import Console
from tests.load.sweep.synthetic import small_sweep

from polyhead_load.sweep.cells import CellRun, cells, searches
from polyhead_load.sweep.progress import SweepProgress


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_are_counted_but_void_ones(terminal: bool) -> None:
    shown = io.StringIO()
    sweep = small_sweep(target={"p99": "50ms"})
    block, search = next(iter(cells(sweep))), searches(sweep)[0]

    with SweepProgress(Console(file=shown, force_terminal=terminal, width=120)) as bar:
        bar.begin(4, 600)
        for cell, void in ((block, ()), (block, ("the server ended",)), (search, ())):
            run = CellRun(cell=cell, block=1, attempt=1)
            bar.start_run(run)
            bar.end_run(run.measurement("", void=void))
        bar.expect(1)
        bar.step("writing the report")

    assert "4 runs, about 10 min" in shown.getvalue()
    assert "void: tiny" in shown.getvalue()
    assert "2/3" if terminal else "round 1: 1 of 4 runs are done" in shown.getvalue()
