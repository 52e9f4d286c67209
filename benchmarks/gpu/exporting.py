"""Exports what the other parts measure, several families at once, each in a process of its own."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu.families import repository_of
from gpu.part import Bench
from gpu.plan import Family

_CORES_EACH = 3
_GIB_EACH = 6
_MOST = 6


@dataclass(kw_only=True)
class _Running:
    family: Family
    process: "subprocess.Popen[str]"
    start: float


def export_all(
    bench: Bench, families: Sequence[Family], command: Callable[[Family, int], Sequence[str]]
) -> None:
    """Exports those of the families that are not there yet, the first ones first.

    Args:
        bench: Says how much time there is.
        families: What is needed.
        command: What exports one family, with so many threads.
    """
    waiting = [family for family in families if not _is_there(bench, family)]
    cores = os.cpu_count() or 1
    at_once = max(1, min(_MOST, cores // _CORES_EACH, _memory_gib() // _GIB_EACH))
    running: list[_Running] = []
    try:
        while (waiting or running) and bench.deadline.left > 0:
            while waiting and len(running) < at_once:
                family = waiting.pop(0)
                process = subprocess.Popen(
                    command(family, max(1, cores // at_once)), stderr=subprocess.PIPE, text=True
                )
                running.append(_Running(family=family, process=process, start=time.monotonic()))
            for one in [each for each in running if each.process.poll() is not None]:
                running.remove(one)
                _report(bench, one)
            time.sleep(0.05)
    finally:
        for one in running:
            one.process.kill()
            one.process.communicate()
        for family in (*(one.family for one in running), *waiting):
            # What was killed in the middle must not be taken for a version.
            shutil.rmtree(repository_of(family, bench.models), ignore_errors=True)
            bench.note(f"{family.key}: not exported, the time for it is over")


def _memory_gib() -> int:
    """The machine's memory; plenty where it cannot be asked."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30
    except (ValueError, OSError, AttributeError):
        return _MOST * _GIB_EACH


def _is_there(bench: Bench, family: Family) -> bool:
    return (repository_of(family, bench.models) / family.key / "1").exists()


def _report(bench: Bench, one: _Running) -> None:
    _, said = one.process.communicate()
    if one.process.returncode == 0:
        bench.row("exported", family=one.family.key, seconds=time.monotonic() - one.start)
        return
    lines = [line for line in said.splitlines() if line.strip()]
    bench.note(f"{one.family.key}: not exported: {lines[-1][:300] if lines else 'it ended without a word'}")
