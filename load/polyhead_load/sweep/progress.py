"""Show the progress of a sweep, on the terminal or in a log."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from polyhead_load.sweep.cells import CellRun
from polyhead_load.sweep.folder import Measurement
from polyhead_load.sweep.loads import parse_load


class SweepProgress:
    """A bar on a terminal, a line for each block elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)),
            console=console,
            expand=True,
            # No thread may use the processor while a server is measured.
            auto_refresh=False,
            disable=not console.is_terminal,
            speed_estimate_period=600,
        )
        self._task = self._progress.add_task("", total=None)
        self._runs = self._done = 0
        self._where = ""

    def step(self, text: str) -> None:
        """Show a step before or after the runs."""
        self._progress.update(self._task, description=text, refresh=True)
        if not self._console.is_terminal:
            self.line(text)

    def line(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def skip(self, what: str, why: str) -> None:
        """Print what will not be measured."""
        self.line(f"skipped: {what}: {why}")

    def begin(self, runs: int, seconds: float) -> None:
        """Begin with the number of runs, and their expected time."""
        self._runs, self._done = runs, 0
        self._progress.update(self._task, total=runs, completed=0, refresh=True)
        if runs:
            self.line(f"{runs} runs, about {max(1, round(seconds / 60))} min")

    def expect(self, runs: int) -> None:
        """Correct the number of runs to come."""
        self._runs = self._done + runs
        self._progress.update(self._task, total=self._runs)

    def start_run(self, run: CellRun) -> None:
        """Show the run that begins."""
        part = "round" if parse_load(run.cell.load).kind == "p99" else "block"
        where = f"{part} {run.block}" if run.block else "throughput"
        again = "" if run.attempt == 1 else " (again)"
        self._progress.update(self._task, description=f"{where}{again}: {run.cell}", refresh=True)
        if where != self._where and not self._console.is_terminal:
            self.line(f"{where}: {self._done} of {self._runs} runs are done")
        self._where = where

    def end_run(self, measurement: Measurement | None) -> None:
        """Count a run that has ended; None was skipped. A void one does not count, it may come again."""
        if measurement is not None and measurement.void:
            cell = ", ".join(measurement.cell)
            self.line(f"void: {cell}, block {measurement.block}: {'; '.join(measurement.void)}")
        else:
            self._done += 1
        self._progress.update(self._task, completed=self._done)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
