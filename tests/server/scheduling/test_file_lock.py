"""A process that measures on a GPU waits for another one, but not for ever."""

from pathlib import Path

import pytest

from polyhead_server.scheduling.file_lock import file_lock


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_one_after_the_other(tmp_path: Path) -> None:
    clock = Clock()
    first = file_lock(tmp_path / "new", "gpu-0")
    first.__enter__()

    def sleep(_seconds: float) -> None:
        clock.now += 1
        first.__exit__(None, None, None)

    with file_lock(tmp_path / "new", "gpu-0", clock=clock, sleep=sleep):
        assert clock.now == 1


def test_another_gpu_is_not_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    with file_lock(tmp_path, "gpu-0"), file_lock(tmp_path, "gpu-1", clock=clock, sleep=clock.sleep):
        assert clock.now == 0


def test_a_process_that_hangs_holds_up_others_for_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    with file_lock(tmp_path, "gpu-0"), file_lock(tmp_path, "gpu-0", clock=clock, sleep=clock.sleep):
        assert clock.now == pytest.approx(60, abs=0.1)


def test_where_nothing_can_be_written_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with file_lock(tmp_path / "file" / "folder", "gpu-0"), file_lock(tmp_path / "file" / "folder", "gpu-0"):
        pass
