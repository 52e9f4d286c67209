"""A run's folder is taken up by the same sweep only."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.load.sweep.synthetic import new_folder, small_sweep

from polyhead_load.errors import SweepError
from polyhead_load.sweep.folder import RunFolder


def facts(**changes: str) -> dict[str, Any]:
    mark = {"command": "first", "began": "1", "cores": "2", "grpcio": "1.0", "commit": "abc"}
    return {"fingerprint": mark | changes, "server": "its own", "skipped": {}}


def test_the_beginnings_facts_stay_and_each_session_is_noted(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {**facts(), "skipped": {"a": "why"}})

    held = folder.begin(small_sweep(), facts(command="second", began="2"))

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
