"""Run the `polyhead` commands and the generator as processes."""

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
from polyhead_load.load_plan import LoadPlan
from polyhead_load.records import GeneratorRun
from polyhead_load.sweep.folder import cannot_write, writing

# The script `polyhead` need not be on the path, or be this environment's.
_POLYHEAD = (
    sys.executable,
    "-c",
    "import sys; from polyhead_client.command import main; sys.exit(main(sys.argv[1:]))",
)
_GENERATOR = (sys.executable, "-m", "polyhead_load.generate")

_SPARE_SECONDS = 60.0
"""What a generator may take beyond its plan: to start, to build requests, and to write."""
_NICE = -10
_CLEAN_UP_SECONDS = 10.0
"""What an interrupted command may take to clean up."""


class ProcessError(Exception):
    """A process failed; the message has the last line that it wrote."""


def polyhead(*arguments: str | Path) -> None:
    """Run a `polyhead` command to its end.

    Raises:
        ProcessError: It failed.
    """
    with _start([*_POLYHEAD, *map(str, arguments)]) as process:
        try:
            _, stderr = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)  # so that it removes what is half done
            try:
                process.communicate(timeout=_CLEAN_UP_SECONDS)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
            raise
    if process.returncode:
        raise ProcessError(failure(stderr, process.returncode))


def generate(plan: LoadPlan, folder: Path, *, command: Sequence[str] = _GENERATOR) -> GeneratorRun:
    """Run the generator.

    Raises:
        ProcessError: It failed, or did not end.
        SweepError: There is no room for its files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    with writing(path):
        path.write_text(plan.to_json())
    longest = plan.warm_up_seconds + plan.seconds + plan.timeout_seconds + _SPARE_SECONDS
    with _start([*command, "--plan", str(path), "--out", str(folder)]) as process:
        priority = _raise_priority(process.pid)
        try:
            _, stderr = process.communicate(timeout=longest)
        except subprocess.TimeoutExpired as error:
            raise ProcessError(f"did not end within {longest:.0f} s") from error
        finally:
            process.kill()
    if process.returncode:
        full = os.strerror(errno.ENOSPC)
        if full in stderr:
            raise cannot_write(folder, OSError(errno.ENOSPC, full))
        raise ProcessError(failure(stderr, process.returncode))
    try:
        run = GeneratorRun.read(folder)
    except (OSError, SweepError) as error:
        raise ProcessError(f"left no records: {error}") from error
    return replace(run, facts={**run.facts, "priority": priority})


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - our own commands
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )


def _raise_priority(pid: int) -> str:
    """Raise the generator's priority where that is allowed; return the priority in words.

    The generator stands for callers elsewhere. On the server's own processors it would otherwise wait behind
    the work that it measures, to send and to take the time: up to 3 ms even with a better nice value, because
    Linux lets a running thread finish its slice. Only real-time scheduling preempts it. Threads that the
    generator starts inherit it.
    """
    with contextlib.suppress(AttributeError, OSError):  # not on every system, and not for everyone
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
        return "real time"
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        psutil.Process(pid).nice(_NICE)
    with contextlib.suppress(psutil.Error, OSError):
        return f"nice {int(psutil.Process(pid).nice())}"
    return "unknown"


def failure(text: str, code: int) -> str:
    """Return how a process ended, and the last line that it wrote."""
    # Commands draw boxes around errors of usage.
    lines = [words for line in text.splitlines() if (words := line.strip(" │╭╮╰╯─"))]
    ended = f"ended by signal {-code}" if code < 0 else f"ended with {code}"
    return f"{ended}: {lines[-1]}" if lines else ended
