"""The CPUs that this process may use. Light: the supervisor imports it."""

import os

from polyhead_proto.system.cgroups import THIS_PROCESS, ControlGroups


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
