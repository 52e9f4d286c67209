"""Folders that are locked while their process lives. A process that is killed leaves them unlocked."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from polyhead_proto.system import locked_folders
from polyhead_proto.system.locked_folders import abandoned_folders, locked_folder

PREFIX = "locked-"


def test_a_folder_is_empty_and_goes_away_with_what_is_in_it(tmp_path: Path) -> None:
    with locked_folder(PREFIX, tmp_path) as folder:
        assert folder.parent == tmp_path
        assert not list(folder.iterdir())
        (folder / "file").write_text("")

    assert not folder.exists()


def test_a_folder_in_use_is_not_abandoned_and_one_that_was_left_is(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(left)
    (tmp_path / f"{PREFIX}file").write_text("")
    (tmp_path / "other").mkdir()

    with locked_folder(PREFIX, tmp_path) as folder:
        assert list(abandoned_folders(PREFIX, tmp_path)) == [left]
        for _ in abandoned_folders(PREFIX, tmp_path):  # which hold them meanwhile
            assert list(abandoned_folders(PREFIX, tmp_path)) == []
        assert folder.exists()


def test_another_process_is_seen_too(tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path\n"
        "from polyhead_proto.system.locked_folders import locked_folder\n"
        f"with locked_folder({PREFIX!r}, Path(sys.argv[1])): print('made', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"made\n"
        assert list(abandoned_folders(PREFIX, tmp_path)) == []
        other.kill()
    (left,) = tmp_path.iterdir()

    assert list(abandoned_folders(PREFIX, tmp_path)) == [left]


@pytest.mark.parametrize("error", [FileNotFoundError, BlockingIOError])
def test_a_folder_that_another_process_took_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    real, seen = locked_folders._lock, list[Path]()

    def taken_once(folder: Path) -> int:
        seen.append(folder)
        if len(seen) == 1:
            raise error
        return real(folder)

    monkeypatch.setattr(locked_folders, "_lock", taken_once)

    with locked_folder(PREFIX, tmp_path) as folder:
        assert seen[1:] == [folder]
        assert not seen[0].exists()


def test_a_file_system_without_locks_has_folders_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_folder: Path) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locked_folders, "_lock", unsupported)

    with ExitStack() as stack:
        folder = stack.enter_context(locked_folder(PREFIX, tmp_path))
        assert list(abandoned_folders(PREFIX, tmp_path)) == []
        assert folder.exists()
