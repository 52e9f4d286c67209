"""How much memory there is, and what the control group leaves of it."""

from pathlib import Path

from polyhead_server.doctor.memory import read_memory

MEMINFO = (
    "MemTotal:       2048 kB\nMemFree:        100 kB\nMemAvailable:   1024 kB\nHugePages_Total:       0\n"
)


def write(folder: Path, membership: str, limits: dict[str, str]) -> dict[str, Path]:
    """A machine's files."""
    (folder / "meminfo").write_text(MEMINFO)
    (folder / "cgroup").write_text(membership)
    for name, limit in limits.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(limit)
    return {"meminfo": folder / "meminfo", "membership": folder / "cgroup", "root": folder / "root"}


def test_without_a_limit(tmp_path: Path) -> None:
    memory = read_memory(**write(tmp_path, "0::/user\n", {"user/memory.max": "max\n"}))

    assert (memory.total, memory.available, memory.limit) == (2048 * 1024, 1024 * 1024, None)


def test_the_smallest_limit_of_the_groups_around_counts(tmp_path: Path) -> None:
    limits = {"a/b/memory.max": "900000\n", "a/memory.max": "500000\n"}

    assert read_memory(**write(tmp_path, "0::/a/b\n", limits)).limit == 500_000


def test_version_1(tmp_path: Path) -> None:
    limits = {
        "memory/docker/memory.limit_in_bytes": "700000\n",
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    }

    assert read_memory(**write(tmp_path, "4:memory:/docker\n3:cpu:/docker\n", limits)).limit == 700_000


def test_this_machine() -> None:
    memory = read_memory()

    assert 0 < memory.available <= memory.total
