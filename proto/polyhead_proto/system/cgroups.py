"""Read the CPU and memory limits of Linux control groups."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 2**60
"""Version 1 reports no limit as a number of about this size."""


class MemoryLimit(NamedTuple):
    """The memory limit of a group, in bytes."""

    limit: int
    used: int
    """The bytes in use, without cached files that the kernel can drop; 0 if unknown."""


@dataclass(frozen=True)
class ControlGroups:
    """The control groups of a process, of version 1 or 2: its own and their ancestors.

    Files that cannot be read count as no limit.
    """

    membership: Path = Path("/proc/self/cgroup")
    """The file that lists the groups of the process."""
    root: Path = Path("/sys/fs/cgroup")
    """The mount point of control groups."""

    def cpu_quotas(self) -> Iterator[float]:
        """Yield every CPU quota that applies, in CPUs."""
        for version, folder in self._folders("cpu"):
            names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            match _numbers(*(folder / name for name in names)):
                case [quota, period] if quota > 0 and period > 0:
                    yield quota / period

    def memory_limits(self) -> Iterator[MemoryLimit]:
        """Yield every memory limit that applies."""
        for version, folder in self._folders("memory"):
            limit, used, cached = (
                ("memory.max", "memory.current", "inactive_file")
                if version == 2
                else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            )
            for most in _numbers(folder / limit):
                if most < _NO_LIMIT:
                    droppable = _table(folder / "memory.stat").get(cached, 0)
                    yield MemoryLimit(most, max(0, sum(_numbers(folder / used)) - droppable))

    def memory_left(self) -> int:
        """Return how many more bytes fit into every memory limit; `sys.maxsize` without one."""
        return min((max(0, limit - used) for limit, used in self.memory_limits()), default=sys.maxsize)

    def _folders(self, controller: str) -> Iterator[tuple[int, Path]]:
        """Yield the folders of the groups of a controller, innermost first, each with its version."""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, group = [*line.split(":", 2), "", ""][:3]
            parts = [part for part in group.split("/") if part not in {"", ".", ".."}]
            mounts: tuple[Path, ...] = ()
            if not controllers:
                mounts = (self.root,)
            elif controller in controllers.split(","):
                # In a container, the path is that of the host, while the mount point is the group itself.
                mounts = (self.root / controllers, self.root / controller)
            for mount in dict.fromkeys(mounts):
                for depth in range(len(parts), -1, -1):
                    yield 1 if controllers else 2, mount.joinpath(*parts[:depth])


THIS_PROCESS = ControlGroups()


def _numbers(*files: Path) -> list[int]:
    """Return the numbers in files; none if a file is missing or holds `max`."""
    try:
        return [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def _table(file: Path) -> dict[str, int]:
    """Return the numbers of a file of lines such as `inactive_file 4096`; empty if it is missing."""
    try:
        return {name: int(value) for name, value in map(str.split, file.read_text().splitlines())}
    except (OSError, ValueError):
        return {}
