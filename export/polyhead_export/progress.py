"""Show the steps of an export: as a bar on a terminal, otherwise as a line for each."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def print_line(console: Console, line: str) -> None:
    """Print a line as it is; where it is too long, the terminal wraps it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


class Steps:
    """The steps of one family: call it before each, with a description.

    Args:
        console: Where to; other lines may be printed there meanwhile.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, visible=False)
        self._begun = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:  # some may have been left out
            self._progress.update(self._task, completed=self._begun, total=self._begun)
        self._progress.stop()

    def expect(self, more: int) -> None:
        """Say how many steps are still to come."""
        self._progress.update(self._task, total=self._begun + more)

    def __call__(self, description: str) -> None:
        """Begin a step."""
        self._progress.update(self._task, description=description, completed=self._begun, visible=True)
        self._begun += 1
        if not self._console.is_terminal:
            print_line(self._console, description)
