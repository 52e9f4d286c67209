"""What a run keeps on disk, and who may resume it."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.load.sweep.synthetic import a_measurement, new_folder, small_sweep

from polyhead_load.errors import SweepError
from polyhead_load.sweep.folder import Journal, RunFolder


def facts(**changes: str) -> dict[str, Any]:
    mark = {"command": "first", "began": "1", "cores": "2", "grpcio": "1.0", "commit": "abc"}
    return {"fingerprint": mark | changes, "server": "its own", "skipped": {}}


def test_the_beginnings_facts_stay_and_each_session_is_noted(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {**facts(), "skipped": {"a": "why"}})

    folder.begin(small_sweep(), facts(command="second", began="2"))

    _, held = folder.read()
    assert held["fingerprint"] == facts()["fingerprint"]
    assert held["sessions"] == [{"command": "first", "began": "1"}, {"command": "second", "began": "2"}]
    assert held["skipped"] == {}
    folder.note({"graphs": {}})
    sweep, noted = folder.read()
    assert sweep == small_sweep()
    assert noted == {**facts(), "sessions": held["sessions"], "graphs": {}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cores": "16"}, "another cores: it must be 2, was 16; .*give another --out"),
        ({"grpcio": "1.1"}, "another grpcio"),
        ({"commit": "def"}, "another commit"),
    ],
)
def test_a_run_is_of_one_machine_and_one_version(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), facts())

    with pytest.raises(SweepError, match=message):
        folder.begin(small_sweep(), facts(**changes))


def test_a_run_is_of_one_server_and_the_same_weights(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {**facts(), "hashes": {"a": {"model.onnx": "1"}}})

    folder.require({"hashes": {"a": {"model.onnx": "1"}, "b": {"model.onnx": "2"}}})
    with pytest.raises(SweepError, match="another server: it must be its own, was at there:1"):
        folder.begin(small_sweep(), {**facts(), "server": "at there:1"})
    with pytest.raises(SweepError, match=r"another a/model\.onnx"):
        folder.require({"hashes": {"a": {"model.onnx": "3"}}})


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")

    with (
        first.locked(),
        pytest.raises(SweepError, match=r"another sweep is measuring into .*: wait for it, or give"),
        second.locked(),
    ):
        pass
    with second.locked():
        second.begin(small_sweep(), {})


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


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_short_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    journal = Journal(path)
    journal.append(a_measurement(block=1))
    journal.append(a_measurement(block=2))
    os.truncate(path, path.stat().st_size - cut)

    again = Journal(path)
    again.append(a_measurement(block=3))

    assert [one.block for one in Journal(path).measurements] == [1, 3]


def test_a_line_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    Journal(path).append(a_measurement())
    with path.open("a") as file:
        file.write('{"family": "a"}\n')

    with pytest.raises(SweepError, match=r"line 2 of .*cells\.jsonl must be a measurement"):
        Journal(path)


def test_a_full_disk_is_reported_with_the_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "cells.jsonl")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(
        SweepError, match=r"No space left on device.*make room and give the same command again"
    ):
        journal.append(a_measurement())
    assert journal.measurements == []
