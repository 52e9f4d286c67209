"""How much memory there is, and what the control group leaves of it."""

from pathlib import Path

import pytest

from polyhead_proto.cgroups import ControlGroups
from polyhead_server.doctor.memory import read_memory

MEMINFO = (
    "MemTotal:       2048 kB\nMemFree:        100 kB\nMemAvailable:   1024 kB\nHugePages_Total:       0\n"
)


@pytest.mark.parametrize(("limits", "smallest"), [({}, None), ({"a": "500000", "a/b": "900000"}, 500_000)])
def test_the_smallest_limit_of_the_groups_around_counts(
    limits: dict[str, str], smallest: int | None, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "membership").write_text("0::/a/b\n")
    for group, limit in limits.items():
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "memory.max").write_text(limit)

    memory = read_memory(
        meminfo=tmp_path / "meminfo",
        groups=ControlGroups(membership=tmp_path / "membership", root=tmp_path),
    )

    assert (memory.total, memory.available, memory.limit) == (2048 * 1024, 1024 * 1024, smallest)


def test_this_machine() -> None:
    memory = read_memory()

    assert 0 < memory.available <= memory.total
