"""How far a sweep is, on the terminal or in a log."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.measuring import Turn


class Bar:
    """A bar where there is a terminal, a line for each block where there is none.

    Args:
        console: Where.
        clock: Tells the time, in seconds.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
            # Nothing here may take the processor by itself while a server is measured.
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._clock = clock
        self._began = clock()
        self._runs = self._done = 0
        self._block: int | None = None
        self.void = 0

    def say(self, text: str) -> None:
        """Show what happens before the first run."""
        self._progress.update(self._task, description=text, refresh=True)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)

    def remark(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, runs: int, seconds: float, most_seconds: float) -> None:
        """Say how many runs are to come, in about how many seconds, and at most if all are tried again."""
        self._runs, self._done, self._began = runs, 0, self._clock()
        self._progress.update(self._task, total=runs, completed=0, refresh=True)
        if runs:
            about, most = _minutes(seconds), _minutes(most_seconds)
            again = "" if most == about else f", up to {most} where runs are void"
            self._console.print(f"{runs} runs, about {about}{again}", highlight=False)

    @property
    def left(self) -> str:
        """How long the rest takes, by the pace so far: the time of void runs is in it."""
        if not 0 < self._done < self._runs:
            return ""
        return f"{_minutes((self._runs - self._done) * (self._clock() - self._began) / self._done)} left"

    def turn(self, turn: Turn) -> None:
        """Show the run that comes now."""
        where = "capacity" if turn.block == 0 else f"block {turn.block}"
        again = "" if turn.attempt == 1 else " (again)"
        self._progress.update(self._task, description=f"{where}{again}: {turn.cell}", refresh=True)
        if turn.block != self._block and not self._console.is_terminal:
            how_far = f": {self._done} of {self._runs} runs, {self.left}" if self.left else ""
            self._console.print(f"{where}{how_far}", highlight=False)
        self._block = turn.block

    def done(self, measurement: Measurement | None) -> None:
        """Count the run that has ended; None is one that was skipped."""
        if measurement is not None and measurement.void:
            self.void += 1
            what = f"{', '.join(measurement.cell)}, block {measurement.block}"
            self._console.print(
                f"void: {what}: {'; '.join(measurement.void)}", highlight=False, markup=False, soft_wrap=True
            )
            self._progress.update(self._task, left=self.left)
            return  # it comes again, or not: the bar counts cells
        self._done += 1
        self._progress.update(self._task, advance=1, left=self.left)

    def skipped(self, what: str, why: str) -> None:
        """Say what will not be measured."""
        self._console.print(f"skipped: {what}: {why}", highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"
