"""How much memory there is, and how much of it the control group leaves."""

import os
from pathlib import Path

from polyhead_proto.cgroups import THIS_PROCESS, ControlGroups
from polyhead_server.doctor.report import Memory


def read_memory(*, meminfo: Path = Path("/proc/meminfo"), groups: ControlGroups = THIS_PROCESS) -> Memory:
    """Return the machine's memory and the smallest limit of the control groups around this process.

    Args:
        meminfo: The kernel's table.
        groups: What limits the process.
    """
    limit = min((each.limit for each in groups.memory_limits()), default=None)
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(total=total, available=total, limit=limit)
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if value}
    return Memory(
        total=kib["MemTotal"] * 2**10,
        available=kib.get("MemAvailable", kib["MemFree"]) * 2**10,
        limit=limit,
    )
