"""What the environment finds, and when there is nothing to go on with."""

from pathlib import Path

import pytest

from gpu.budget import Deadline
from gpu.card import Cpu, Kind, NoCardError
from gpu.environment import library_folders, mps_runs, run
from gpu.journal import Journal
from gpu.part import Bench
from gpu.plan import Plan


class WithoutCuda(Cpu):
    """A card that torch can use, and onnxruntime cannot: it falls back to the CPU."""

    kind: Kind = "cuda"

    @property
    def name(self) -> str:
        return "NVIDIA Something"


def test_a_card_that_onnxruntime_cannot_use_is_none(plan: Plan, tmp_path: Path) -> None:
    bench = Bench(
        part="environment",
        card=WithoutCuda(),
        plan=plan,
        models=tmp_path,
        journal=Journal(tmp_path / "journal.jsonl"),
        deadline=Deadline(60.0),
    )

    with pytest.raises(NoCardError, match=r"does not run on NVIDIA Something.*polyhead doctor"):
        run(bench)
    assert bench.journal.read() == {}


def test_libraries_lie_where_the_process_has_them_from(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 0 08:01 1  /opt/my env/nvidia/cublas/lib/libcublas.so.13\n"
        "7f01-7f02 r-xp 0 08:01 2  /opt/my env/nvidia/cublas/lib/libcublasLt.so.13\n"
        "7f02-7f03 r-xp 0 08:01 3  /opt/nvidia/cudnn/lib/libcudnn.so.9\n"
        "7f03-7f04 r-xp 0 08:01 4  /usr/lib/libcuda.so.580.1\n"
        "7f04-7f05 r-xp 0 08:01 5  /usr/lib/libc.so.6\n"
        "7f05-7f06 rw-p 0 00:00 0  [heap]\n"
    )

    assert library_folders(maps) == ["/opt/my env/nvidia/cublas/lib", "/opt/nvidia/cudnn/lib"]
    assert library_folders(tmp_path / "none") == []


def test_the_service_for_several_processes_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not mps_runs()

    (tmp_path / "control").touch()
    assert mps_runs()
