"""What has been measured stays, whatever happens."""

import errno
import os
from pathlib import Path

import pytest

from polyhead_load.errors import SweepError
from polyhead_load.sweep.journal import Journal, Measurement


def a_measurement(block: int = 1) -> Measurement:
    return Measurement(
        family="a",
        tokens="4",
        batch="1",
        attention="off",
        load="single",
        block=block,
        attempt=1,
        started="2026-01-01T00:00:00Z",
        p50_ms=1.5,
    )


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    journal = Journal(path)
    journal.append(a_measurement(1))
    journal.append(a_measurement(2).model_copy(update={"void": ("why",)}))

    assert Journal(path).measurements == journal.measurements
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_short_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    journal = Journal(path)
    journal.append(a_measurement(1))
    journal.append(a_measurement(2))
    os.truncate(path, path.stat().st_size - cut)

    again = Journal(path)
    again.append(a_measurement(3))

    assert [one.block for one in Journal(path).measurements] == [1, 3]


def test_a_line_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Journal(path).append(a_measurement())
    with path.open("a") as file:
        file.write('{"family": "a"}\n')

    with pytest.raises(SweepError, match=r"line 2 of .*cells\.jsonl must be a measurement"):
        Journal(path)


def test_a_full_disk_is_told_with_the_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "cells.jsonl")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(
        SweepError, match=r"No space left on device.*make room and give the same command again"
    ):
        journal.append(a_measurement())
    assert journal.measurements == []
