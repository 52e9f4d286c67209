"""How many processors this process may really use: its affinity and its control group's quota."""

import os

from polyhead_proto.cgroups import THIS_PROCESS, ControlGroups


def available_cpus(*, affinity: int | None = None, groups: ControlGroups = THIS_PROCESS) -> int:
    """Return how many processors can be kept busy, at least 1.

    A fraction is dropped: one thread more than the quota pays for makes every thread wait when it runs out.

    Args:
        affinity: Processors that the scheduler may use; None asks the system.
        groups: What limits the process.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([affinity, *groups.cpu_quotas()])))


def concurrent_runs(threads: int) -> int:
    """Return how many runs of a session with so many threads go at once.

    Between two operators, and where one is too small for all, threads of a run wait for each other. A second
    run fills these gaps: with two threads it raised throughput by 1.1 to 1.75 (docs/scheduling.md).
    """
    return 1 if threads == 1 else max(2, threads // 4)
