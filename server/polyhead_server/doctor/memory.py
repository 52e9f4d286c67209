"""How much memory there is, and how much of it the control group leaves."""

import os
from collections.abc import Iterator
from pathlib import Path

from polyhead_server.doctor.report import Memory

_NO_LIMIT = 2**60
"""Version 1 of control groups writes a number of about this size where there is no limit."""


def read_memory(
    *,
    meminfo: Path = Path("/proc/meminfo"),
    membership: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
) -> Memory:
    """The machine's memory and the smallest limit of the control groups around this process.

    Args:
        meminfo: The kernel's table.
        membership: The process's list of control groups.
        root: Where control groups (version 1 or 2) are mounted.
    """
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(total=total, available=total, limit=None)
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if value}
    limits = [limit for limit in _limits(membership, root) if limit < _NO_LIMIT]
    return Memory(
        total=kib["MemTotal"] * 2**10,
        available=kib.get("MemAvailable", kib["MemFree"]) * 2**10,
        limit=min(limits, default=None),
    )


def _limits(membership: Path, root: Path) -> Iterator[int]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        parts = [part for part in group.split("/") if part not in {"", ".", ".."}]
        for depth in range(len(parts), -1, -1):
            if not controllers:
                yield from _read(root.joinpath(*parts[:depth], "memory.max"))
            elif "memory" in controllers.split(","):
                yield from _read(root.joinpath("memory", *parts[:depth], "memory.limit_in_bytes"))


def _read(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():  # version 2 writes `max` where there is no limit
        yield int(text)
