"""What control groups leave of processors and memory."""

import sys
from pathlib import Path

import pytest

from polyhead_proto.system.cgroups import ControlGroups, MemoryLimit

UNLIMITED = str(2**63 - 4096)


def groups(folder: Path, membership: str, files: dict[str, str]) -> ControlGroups:
    """A tree as the kernel shows it."""
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        file = folder / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return ControlGroups(membership=folder / "membership", root=folder / "fs")


@pytest.mark.parametrize(
    ("membership", "files", "quotas"),
    [
        ("0::/pod/box\n", {"pod/box/cpu.max": "250000 100000"}, [2.5]),
        ("0::/pod/box\n", {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "max 100000"}, [3]),
        ("0::/pod/box\n", {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "100000 100000"}, [1, 3]),
        (
            "5:memory:/box\n4:cpu,cpuacct:/box\n",
            {"cpu,cpuacct/box/cpu.cfs_quota_us": "400000", "cpu,cpuacct/box/cpu.cfs_period_us": "100000"},
            [4],
        ),
        # In a container the mount is the group itself.
        (
            "4:cpu:/docker/0123\n",
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            [3],
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
    ],
)
def test_every_cpu_quota_around_a_process(
    membership: str, files: dict[str, str], quotas: list[float], tmp_path: Path
) -> None:
    assert list(groups(tmp_path, membership, files).cpu_quotas()) == quotas


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        (
            "0::/a/b\n",
            {"a/memory.max": "9000", "a/memory.current": "2000", "a/b/memory.max": "max"},
            [MemoryLimit(9000, 2000)],
        ),
        # Cached files that have not been used again give way to whatever needs the memory.
        (
            "0::/a\n",
            {
                "a/memory.max": "9000",
                "a/memory.current": "2000",
                "a/memory.stat": "anon 300\ninactive_file 1500\ntotal_inactive_file 1",
            },
            [MemoryLimit(9000, 500)],
        ),
        ("0::/a/b\n", {"a/memory.max": "9", "a/b/memory.max": "5"}, [MemoryLimit(5, 0), MemoryLimit(9, 0)]),
        (
            "4:cpu:/a\n5:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "9000",
                "memory/a/memory.usage_in_bytes": "1000",
                "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 400",
                "memory/memory.limit_in_bytes": UNLIMITED,
            },
            [MemoryLimit(9000, 600)],
        ),
        ("4:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "9000"}, []),
    ],
)
def test_every_memory_limit_around_a_process(
    membership: str, files: dict[str, str], limits: list[MemoryLimit], tmp_path: Path
) -> None:
    found = groups(tmp_path, membership, files)

    assert list(found.memory_limits()) == limits
    assert found.memory_left() == min((limit - used for limit, used in limits), default=sys.maxsize)


@pytest.mark.parametrize("text", ["", "nonsense", "1 0", "0::../../.."])
def test_what_cannot_be_read_limits_nothing(text: str, tmp_path: Path) -> None:
    found = groups(
        tmp_path,
        f"0::/{text}\nnonsense\n",
        {"cpu.max": text, "memory.max": "no number", "memory.stat": "no\nnumber"},
    )

    assert not list(found.cpu_quotas())
    assert not list(found.memory_limits())


def test_without_control_groups_there_are_no_limits(tmp_path: Path) -> None:
    found = ControlGroups(membership=tmp_path / "none", root=tmp_path)

    assert not list(found.cpu_quotas())
    assert not list(found.memory_limits())
