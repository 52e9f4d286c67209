"""How many processors this process may really use: its affinity and its control group's quota."""

import os
from collections.abc import Iterator
from pathlib import Path


def available_cpus(
    *,
    affinity: int | None = None,
    membership: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
) -> int:
    """The processors that can be kept busy, at least 1.

    A fraction is dropped: one thread more than the quota pays for makes every thread wait when it runs out.

    Args:
        affinity: Processors that the scheduler may use; None asks the system.
        membership: The process's list of control groups.
        root: Where control groups (version 1 or 2) are mounted.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for quota in _quotas(membership, root) if quota > 0]
    return max(1, int(min([affinity, *quotas])))


def concurrent_runs(threads: int) -> int:
    """How many runs of a session with so many threads go at once.

    Between two operators, and where one is too small for all, threads of a run wait for each other. A second
    run fills these gaps: with two threads it raised throughput by 1.1 to 1.75 (docs/scheduling.md).
    """
    return 1 if threads == 1 else max(2, threads // 4)


def _quotas(membership: Path, root: Path) -> Iterator[float]:
    """Every quota that applies, in processors: a group's own and those of the groups around it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers:  # version 2
            for folder in _upwards(root, group):
                yield _read_v2(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            # Inside a container, the group's path is the host's, and the mount shows the group itself.
            for mount in (root / controllers, root / "cpu"):
                for folder in _upwards(mount, group):
                    yield _read_v1(folder)


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part not in {"", ".", ".."}]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _read_v2(file: Path) -> float:
    try:
        quota, period = file.read_text().split()[:2]
        return 0.0 if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def _read_v1(folder: Path) -> float:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return max(0.0, quota / int((folder / "cpu.cfs_period_us").read_text()))
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0
