"""The CPUs that this process may use. Light: the supervisor imports it."""

import os
import platform
from pathlib import Path

from polyhead_proto.cgroups import THIS_PROCESS, ControlGroups


def available_cpus(*, affinity: int | None = None, groups: ControlGroups = THIS_PROCESS) -> int:
    """Return how many CPUs can be kept busy, by affinity and the control groups' quotas; at least 1.

    A fraction is dropped: with one thread more than the quota pays for, every thread waits when it runs out.

    Args:
        affinity: CPUs that the system may schedule the process on; None asks the system.
        groups: What limits the process.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([affinity, *groups.cpu_quotas()])))


def cpu_name() -> str:
    """Return the CPU's model."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() in {"model name", "Model"}:
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
