"""How much memory there is, and how much of it a container leaves."""

from pathlib import Path

import psutil
import pytest

from polyhead_load.sweep import memory


def groups(folder: Path, membership: str, files: dict[str, str]) -> dict[str, Path]:
    """A tree as the kernel shows it."""
    (folder / "cgroup").write_text(membership)
    for name, text in files.items():
        file = folder / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return {"membership": folder / "cgroup", "root": folder / "root"}


@pytest.mark.parametrize(
    ("membership", "files", "left"),
    [
        ("0::/a/b\n", {"a/memory.max": "9000", "a/memory.current": "2000", "a/b/memory.max": "max"}, 7000),
        ("0::/a\n", {"a/memory.max": "1000", "a/memory.current": "2000"}, 0),
        (
            "4:cpu:/a\n5:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "9000", "memory/a/memory.usage_in_bytes": "1000"},
            8000,
        ),
    ],
)
def test_a_containers_limit_counts(membership: str, files: dict[str, str], left: int, tmp_path: Path) -> None:
    assert memory.available(**groups(tmp_path, membership, files)) == left


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path) -> None:
    there = memory.available(**groups(tmp_path, "0::/a\n", {"a/memory.max": "max"}))

    assert 0 < there <= psutil.virtual_memory().total
    assert memory.available(membership=tmp_path / "nothing") > 0
