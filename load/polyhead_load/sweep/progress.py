"""Show the progress of a sweep, on the terminal or in a log."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polyhead_load.sweep.cells import CellRun
from polyhead_load.sweep.folder import Measurement
from polyhead_load.sweep.loads import parse_load


class SweepProgress:
    """A bar on a terminal, a line for each block elsewhere."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
            # No thread may use the processor while a server is measured.
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._clock = clock
        self._began = clock()
        self._runs = self._done = 0
        self._seconds = self._done_seconds = 0.0
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

    def begin(self, runs: int, seconds: float, most_seconds: float) -> None:
        """Begin with the number of runs, their expected time, and that with all runs tried again."""
        self._runs, self._done, self._began = runs, 0, self._clock()
        self._seconds, self._done_seconds = seconds, 0.0
        self._progress.update(self._task, total=runs, completed=0, refresh=True)
        if runs:
            about, most = _minutes(seconds), _minutes(most_seconds)
            self.line(
                f"{runs} runs, about {about}"
                + ("" if most == about else f", up to {most} where runs are void or a search takes longer")
            )

    def expect(self, more: int, seconds: float) -> None:
        """Correct the number of runs and their time by those that a search took more than expected."""
        self._runs += more
        self._seconds += seconds
        self._progress.update(self._task, total=self._runs)

    @property
    def left(self) -> str:
        """Return how long the rest takes at the pace so far, which includes void runs."""
        if not 0 < self._done < self._runs or not self._done_seconds:
            return ""
        pace = (self._clock() - self._began) / self._done_seconds
        return f"{_minutes(pace * max(0.0, self._seconds - self._done_seconds))} left"

    def start_run(self, run: CellRun) -> None:
        """Show the run that begins."""
        part = "round" if parse_load(run.cell.load).kind == "p99" else "block"
        where = f"{part} {run.block}" if run.block else "throughput"
        again = "" if run.attempt == 1 else " (again)"
        self._progress.update(self._task, description=f"{where}{again}: {run.cell}", refresh=True)
        if where != self._where and not self._console.is_terminal:
            done = f": {self._done} of {self._runs} runs, {self.left}" if self.left else ""
            self.line(f"{where}{done}")
        self._where = where

    def end_run(self, measurement: Measurement | None, seconds: float) -> None:
        """Count a run that has ended, with the time that was expected; None was skipped.

        A void one does not count, it may come again.
        """
        if measurement is not None and measurement.void:
            cell = ", ".join(measurement.cell)
            self.line(f"void: {cell}, block {measurement.block}: {'; '.join(measurement.void)}")
        else:
            self._done += 1
            self._done_seconds += seconds
        self._progress.update(self._task, completed=self._done, left=self.left)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"
