"""What Linux's control groups leave a process of the machine's processors and memory.

Server and load tests both need it, and neither may import the other: it stands in the package below both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT = 2**60
"""Version 1 writes a number of about this size where memory has no limit."""


class MemoryLimit(NamedTuple):
    """A group's limit, in bytes."""

    limit: int
    used: int
    """What the group holds; 0 where that is not known."""


@dataclass(frozen=True)
class ControlGroups:
    """The control groups of a process, of version 1 or 2: its own and those around it.

    What cannot be read limits nothing.
    """

    membership: Path = Path("/proc/self/cgroup")
    """The process's list of groups."""
    root: Path = Path("/sys/fs/cgroup")
    """Where groups are mounted."""

    def cpu_quotas(self) -> Iterator[float]:
        """Yield every CPU quota that applies, in processors."""
        for version, folder in self._folders("cpu"):
            names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            match _numbers(*(folder / name for name in names)):
                case [quota, period] if quota > 0 and period > 0:
                    yield quota / period

    def memory_limits(self) -> Iterator[MemoryLimit]:
        """Yield every memory limit that applies."""
        for version, folder in self._folders("memory"):
            limit, used = (
                ("memory.max", "memory.current")
                if version == 2
                else ("memory.limit_in_bytes", "memory.usage_in_bytes")
            )
            for most in _numbers(folder / limit):
                if most < _NO_LIMIT:
                    yield MemoryLimit(most, sum(_numbers(folder / used)))

    def _folders(self, controller: str) -> Iterator[tuple[int, Path]]:
        """Yield the groups that limit what a controller controls, innermost first, with their version."""
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
                # In a container the group's path is the host's, and the mount shows the group itself.
                mounts = (self.root / controllers, self.root / controller)
            for mount in dict.fromkeys(mounts):
                for depth in range(len(parts), -1, -1):
                    yield 1 if controllers else 2, mount.joinpath(*parts[:depth])


THIS_PROCESS = ControlGroups()


def _numbers(*files: Path) -> list[int]:
    """Return the numbers that files hold; none where one is missing, or says `max`."""
    try:
        return [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
