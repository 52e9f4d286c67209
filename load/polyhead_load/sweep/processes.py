"""The `polyhead` commands and the generator, as processes of their own."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from polyhead_load.errors import SweepError
from polyhead_load.plan import Plan
from polyhead_load.records import Run
from polyhead_load.sweep.journal import no_room

# The script `polyhead` need not be on the path, or be this environment's.
POLYHEAD = (
    sys.executable,
    "-c",
    "import sys; from polyhead_client.command import main; sys.exit(main(sys.argv[1:]))",
)

GENERATOR = (sys.executable, "-m", "polyhead_load.generate")

_SPARE_SECONDS = 60.0
"""What a generator may take beyond its plan: to start, to prepare requests, and to write."""
_NICE = -10
_CLEAR_SECONDS = 10.0
"""What a command may take to clear away, when it is interrupted."""


class ProcessError(Exception):
    """A process failed; the message is its last words."""


def polyhead(*arguments: str | Path) -> None:
    """Run a command to its end.

    Raises:
        ProcessError: It failed.
    """
    with subprocess.Popen(  # noqa: S603 - our own commands
        [*POLYHEAD, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            _, said = process.communicate()
        except BaseException:
            _interrupt(process)  # so that it clears away what is half done
            raise
    if process.returncode:
        raise ProcessError(last_words(said, process.returncode))


def _interrupt(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_CLEAR_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()


def generate(plan: Plan, folder: Path, *, command: Sequence[str] = GENERATOR) -> Run:
    """Run the generator.

    Args:
        plan: What it is to do.
        folder: Where it writes; made here.
        command: What to start.

    Raises:
        ProcessError: It failed, or did not end.
        SweepError: There is no room for its files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    try:
        path.write_text(plan.to_json())
    except OSError as error:
        raise no_room(path, error) from error
    longest = plan.warm_up_seconds + plan.seconds + plan.timeout_seconds + _SPARE_SECONDS
    with subprocess.Popen(  # noqa: S603 - our own command
        [*command, "--plan", str(path), "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        priority = _prefer(process.pid)
        try:
            _, said = process.communicate(timeout=longest)
        except subprocess.TimeoutExpired as error:
            raise ProcessError(f"did not end within {longest:.0f} s") from error
        finally:
            process.kill()
    if process.returncode:
        full = os.strerror(errno.ENOSPC)
        if full in said:
            raise no_room(folder, OSError(errno.ENOSPC, full))
        raise ProcessError(last_words(said, process.returncode))
    try:
        run = Run.read(folder)
        return replace(run, facts={**run.facts, "priority": priority})
    except (OSError, SweepError) as error:
        raise ProcessError(f"left no records: {error}") from error


def _prefer(pid: int) -> str:
    """Raise the generator's priority where that is allowed; return what came of it, for people.

    It stands for callers elsewhere. On the server's own processors it would otherwise wait behind the runs
    that it measures, to send and to take the time: up to 3 ms even where it is preferred by its nice value,
    because Linux lets what runs finish its slice. Only real time goes before that. Threads that it starts
    get the same.
    """
    with contextlib.suppress(AttributeError, OSError):  # not on every system, and not for everyone
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
        return "real time"
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        psutil.Process(pid).nice(_NICE)
    with contextlib.suppress(psutil.Error, OSError):
        return f"nice {int(psutil.Process(pid).nice())}"
    return "unknown"


def last_words(text: str, code: int) -> str:
    """Return the last line that a process wrote, and how it ended."""
    # Commands draw boxes around what is wrong with a command line.
    lines = [words for line in text.splitlines() if (words := line.strip(" │╭╮╰╯─"))]
    ended = f"ended by signal {-code}" if code < 0 else f"ended with {code}"
    return f"{ended}: {lines[-1]}" if lines else ended
