"""The processors that a container grants."""

from pathlib import Path

import pytest

from polyhead_server.threads import available_cpus, concurrent_runs


@pytest.fixture
def group(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cpus(group: Path, membership: str, affinity: int = 16) -> int:
    write(group / "membership", membership)
    return available_cpus(affinity=affinity, membership=group / "membership", root=group / "fs")


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cpus(affinity=6, membership=tmp_path / "none", root=tmp_path) == 6


def test_this_machine_has_at_least_one() -> None:
    assert available_cpus() >= 1


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 16)],
)
def test_version_2(group: Path, quota: str, expected: int) -> None:
    write(group / "fs" / "pod" / "box" / "cpu.max", quota)

    assert cpus(group, "0::/pod/box\n") == expected


def test_version_2_takes_the_tightest_of_the_groups_around(group: Path) -> None:
    write(group / "fs" / "pod" / "cpu.max", "300000 100000")
    write(group / "fs" / "pod" / "box" / "cpu.max", "max 100000")

    assert cpus(group, "0::/pod/box\n") == 3


def test_version_1(group: Path) -> None:
    folder = group / "fs" / "cpu,cpuacct" / "box"
    write(folder / "cpu.cfs_quota_us", "400000")
    write(folder / "cpu.cfs_period_us", "100000")

    assert cpus(group, "5:memory:/box\n4:cpu,cpuacct:/box\n") == 4


def test_version_1_inside_a_container_where_the_mount_is_the_group(group: Path) -> None:
    write(group / "fs" / "cpu" / "cpu.cfs_quota_us", "300000")
    write(group / "fs" / "cpu" / "cpu.cfs_period_us", "100000")

    assert cpus(group, "4:cpu,cpuacct:/docker/0123\n") == 3


def test_version_1_without_a_quota(group: Path) -> None:
    write(group / "fs" / "cpu" / "cpu.cfs_quota_us", "-1")
    write(group / "fs" / "cpu" / "cpu.cfs_period_us", "100000")

    assert cpus(group, "4:cpu:/\n") == 16


@pytest.mark.parametrize("text", ["", "nonsense", "1 0", "0::../../..\n"])
def test_what_cannot_be_read_is_passed_over(group: Path, text: str) -> None:
    write(group / "fs" / "cpu.max", text)

    assert cpus(group, f"0::/{text}\nnonsense\n") == 16


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 2), (4, 2), (8, 2), (16, 4)])
def test_runs_share_the_threads(threads: int, expected: int) -> None:
    assert concurrent_runs(threads) == expected
