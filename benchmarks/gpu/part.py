"""What every part is given."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.budget import Deadline
from gpu.card import Card
from gpu.journal import Journal
from gpu.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A device, a plan, some time, and a place to write."""

    part: str
    card: Card
    plan: Plan
    models: Path
    """The folder of model repositories."""
    journal: Journal
    deadline: Deadline
    serve_arguments: tuple[str, ...] = ()
    """For `polyhead serve`."""

    def row(self, kind: str, **facts: Any) -> None:
        """Writes something that was measured."""
        self.journal.row(self.part, kind, facts)

    def note(self, text: str) -> None:
        """Writes what was not done, and why."""
        self.journal.note(self.part, text)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What fails in here is noted, and the part goes on."""
        try:
            yield
        except Exception as error:
            self.note(f"{what}: {reason(error)}")

    def fits(self, what: str, seconds: float) -> bool:
        """Whether there is time for something; where not, that is noted."""
        if self.deadline.fits(seconds):
            return True
        self.note(f"{what}: left out, {self.deadline.left:.0f} s are left and it takes about {seconds:.0f} s")
        return False


def reason(error: BaseException) -> str:
    """An error in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:300]


class Pace:
    """Expects the next piece of work to take half as long again as the last, or what it was told at first."""

    def __init__(self, first_seconds: float) -> None:
        self.expected = first_seconds

    @contextmanager
    def measured(self) -> Iterator[None]:
        """One piece of work."""
        start = time.monotonic()
        yield
        self.expected = 1.5 * (time.monotonic() - start)
