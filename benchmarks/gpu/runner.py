"""Part after part, each in a process of its own: one that crashes or takes too long takes nothing with it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.budget import Budget
from gpu.journal import Journal

NO_CARD = 3
"""The exit status of a part that found no device."""

_GRACE_SECONDS = 10.0
"""Kept back from what a part is told, at most a quarter: it looks at the time only between pieces of work."""
_LEAST_SECONDS = 5.0
"""A part takes about so long to begin."""
_LOOK_SECONDS = 0.3


class NoDeviceError(Exception):
    """There is nothing to measure on; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the parts of a check.

    Args:
        journal: Where parts write what they find.
        budget: Their time.
        command: What runs a part in so many seconds.
        logs: The folder for what they print.
        seen: Called with the part's name as it goes on, and when it is over.
    """

    journal: Journal
    budget: Budget
    command: Callable[[str, float], Sequence[str]]
    logs: Path
    seen: Callable[[str], None]

    def run(self, parts: Sequence[str]) -> None:
        """Runs them in order.

        Raises:
            NoDeviceError: The first of them found no device.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for part in parts:
            self._run(part)

    def _run(self, part: str) -> None:
        allowed = self.budget.allow(part)
        self.journal.begin(part, allowed)
        if allowed < _LEAST_SECONDS:
            self.journal.end(part, "out of time", 0.0, f"not begun: {allowed:.0f} s were left for it")
            self.seen(part)
            return
        told = allowed - min(_GRACE_SECONDS, allowed / 4)
        log = self.logs / f"{part}.log"
        start = time.monotonic()
        with (
            log.open("w") as output,
            subprocess.Popen(
                self.command(part, told),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a group of its own, with the servers and callers that it starts
            ) as process,
        ):
            try:
                late = self._wait(process, part, allowed)
            finally:
                _kill(process)
        seconds = time.monotonic() - start
        if process.returncode == NO_CARD:
            self.journal.end(part, "failed", seconds, _last_line(log))
            raise NoDeviceError(_last_line(log))
        if late:
            self.journal.end(part, "out of time", seconds, f"ended after {seconds:.0f} s")
        elif self.journal.read()[part].state == "running":
            how = f"ended with status {process.returncode}"
            if process.returncode < 0:
                how = f"ended by {signal.Signals(-process.returncode).name}"
            self.journal.end(part, "failed", seconds, f"{how}: {_last_line(log)}")
        self.seen(part)

    def _wait(self, process: "subprocess.Popen[bytes]", part: str, seconds: float) -> bool:
        """Waits for its end; returns whether it took too long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                process.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                self.seen(part)
            else:
                return False
        return True


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends what is left of a part's process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
