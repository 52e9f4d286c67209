"""Who measures on a device waits for whoever does already, but not for ever."""

from pathlib import Path

import pytest

from polyhead_server.scheduling.file_lock import turn


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_one_after_the_other(tmp_path: Path) -> None:
    clock = Clock()
    first = turn(tmp_path / "new", "card-0")
    first.__enter__()

    def sleep(_seconds: float) -> None:
        clock.now += 1
        first.__exit__(None, None, None)

    with turn(tmp_path / "new", "card-0", clock=clock, sleep=sleep):
        assert clock.now == 1


def test_another_card_is_not_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    with turn(tmp_path, "card-0"), turn(tmp_path, "card-1", clock=clock, sleep=clock.sleep):
        assert clock.now == 0


def test_a_process_that_hangs_holds_up_others_for_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    with turn(tmp_path, "card-0"), turn(tmp_path, "card-0", clock=clock, sleep=clock.sleep):
        assert clock.now == pytest.approx(60, abs=0.1)


def test_where_nothing_can_be_written_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with turn(tmp_path / "file" / "folder", "card-0"), turn(tmp_path / "file" / "folder", "card-0"):
        pass
