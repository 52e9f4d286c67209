"""A run's folder is taken up by the same sweep only."""

import errno
import os
from pathlib import Path

import pytest
from tests.load.sweep.synthetic import new_folder, small_sweep

from polyhead_load.sweep.errors import SweepError
from polyhead_load.sweep.folder import RunFolder


def test_the_beginnings_facts_stay(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {"fingerprint": {"began": "first"}, "skipped": {"a": "why"}})

    held = folder.begin(small_sweep(), {"fingerprint": {"began": "second"}, "skipped": {}})

    assert held["fingerprint"] == {"began": "first"}
    assert held["skipped"] == {}
    folder.note({**held, "graphs": {}})
    assert folder.read() == (small_sweep(), {"fingerprint": {"began": "first"}, "skipped": {}, "graphs": {}})


def test_another_sweeps_folder_is_refused(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {})

    with pytest.raises(
        SweepError, match=r"holds another sweep \('small', or with other values\): give another"
    ):
        folder.begin(small_sweep(blocks=4), {})


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    with pytest.raises(SweepError, match="--out must be a new folder, or one of a sweep"):
        RunFolder(tmp_path).begin(small_sweep(), {})


def test_no_folder_of_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"must be the folder of a sweep, it has no sweep.json"):
        RunFolder(tmp_path).read()
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(SweepError, match="must describe a sweep, is damaged"):
        RunFolder(tmp_path).read()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {})

    def full(path: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SweepError, match=r"sweep\.json cannot be written \(No space left on device\)"):
        folder.note({})
    assert folder.read()[0] == small_sweep()
