"""What the machine reports: memory within its control groups, processors, libraries and their versions."""

from pathlib import Path

import pytest

from polyhead_proto.system.cgroups import ControlGroups
from polyhead_server.doctor import machine

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

    found = machine.memory(
        meminfo=tmp_path / "meminfo",
        groups=ControlGroups(membership=tmp_path / "membership", root=tmp_path),
    )

    assert (found.total, found.available, found.limit) == (2048 * 1024, 1024 * 1024, smallest)


def test_this_machines_memory() -> None:
    found = machine.memory()

    assert 0 < found.available <= found.total


def test_a_library_is_loaded_and_found() -> None:
    assert str(machine.find_library("libc.so.6")).endswith("libc.so.6")
    assert machine.find_library("libabsent.so.1") is None


def test_this_machines_processors_and_runtime() -> None:
    processors, runtime = machine.processors(), machine.onnxruntime_here()

    assert 1 <= processors.usable <= processors.affinity <= processors.in_machine
    assert "CPUExecutionProvider" in runtime.providers


@pytest.mark.parametrize(
    ("text", "model", "has"),
    [
        (
            "model name\t: A\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\nflags\t: fpu\n",
            "A",
            {"AVX2", "AVX-512", "BF16"},
        ),
        ("model name\t: B\nflags\t\t: avx2 avx_vnni amx_tile\n", "B", {"AVX2", "VNNI", "AMX"}),
        ("Features\t: fp asimd\n", None, None),
        (None, None, None),
    ],
)
def test_instructions_are_those_that_the_kernel_lists(
    tmp_path: Path, text: str | None, model: str | None, has: set[str] | None
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    processors = machine.processors(cpuinfo=tmp_path / "cpuinfo")

    found = processors.instructions
    assert processors.model == model
    assert (None if found is None else {name for name, there in found.items() if there}) == has


def test_versions_are_asked_of_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """A library whose functions write 13020."""

        def cuDriverGetVersion(self, pointer: object) -> int:  # noqa: N802
            pointer._obj.value = 13020  # type: ignore[attr-defined]
            return 0

        cudaRuntimeGetVersion = cuDriverGetVersion  # noqa: N815

        def nvrtcVersion(self, major: object, minor: object) -> int:  # noqa: N802
            major._obj.value, minor._obj.value = 13, 5  # type: ignore[attr-defined]
            return 0

    monkeypatch.setattr(machine, "_open", lambda name: Library())

    assert machine.cuda_versions("13") == ("13.2", "13.2", "13.5")
    assert machine.cuda_versions("") == ("13.2", None, None)
