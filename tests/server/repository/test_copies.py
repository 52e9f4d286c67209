"""Sessions live on a copy: what happens to the repository's files afterwards does not reach them."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from polyhead_server.engine.devices import on_cpu
from polyhead_server.errors import RepositoryError
from polyhead_server.repository.copies import private_copy, remove_abandoned_copies
from polyhead_server.repository.scanning import VersionFolder, scan
from polyhead_server.serving.loading import Loaded, Loader


@pytest.fixture
def version(repository: Path, tmp_path: Path) -> VersionFolder:
    shutil.copytree(repository / "tiny", tmp_path / "models" / "tiny")
    (found,) = scan(tmp_path / "models")
    assert isinstance(found, VersionFolder)
    return found


def test_the_copy_is_equal_and_ours_alone_and_goes_away(version: VersionFolder) -> None:
    with private_copy(version.folder, version.manifest) as copy:
        assert stat.S_IMODE(copy.stat().st_mode) == 0o700
        assert {path.name for path in copy.iterdir()} == set(version.manifest.files)
        for name in version.manifest.files:
            assert (copy / name).read_bytes() == (version.folder / name).read_bytes()
            assert not (copy / name).samefile(version.folder / name)
            assert (copy / name).stat().st_nlink == 1

    assert not copy.exists()


def test_a_temporary_folder_without_room_is_a_clear_error(
    version: VersionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)

    with (
        pytest.raises(RepositoryError, match=r"cannot be copied .* \(TMPDIR\): No space left on device"),
        private_copy(version.folder, version.manifest),
    ):
        pass


@pytest.mark.parametrize("change", ["overwritten", "cut", "removed"])
def test_a_file_that_is_changed_in_place_does_not_change_a_sessions_answers(
    version: VersionFolder, change: str
) -> None:
    loaded = [one for one in Loader(device=on_cpu(""), threads=1).load(version) if isinstance(one, Loaded)]
    feeds = {"x": np.ones((1, 3, 16), np.float32), "lengths": np.array([3], np.int32)}

    for name in version.manifest.files:
        path = version.folder / name
        match change:
            case "overwritten":
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
            case "cut":
                os.truncate(path, 0)
            case "removed":
                path.unlink()

    after = [one.lanes.engine.run(feeds, ["output"])["output"] for one in loaded]
    again = [one.lanes.engine.run(feeds, ["output"])["output"] for one in loaded]
    assert len(after) == 2
    np.testing.assert_allclose(after[0], after[1], atol=1e-5)
    assert np.abs(after[0]).max() > 0.1
    np.testing.assert_array_equal(after, again)


KILLED = """
import os, signal, sys
from pathlib import Path
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.copies import private_copy
from polyhead_server.repository.copies import private_copy
from polyhead_server.repository.manifest import read_manifest

folder = Path(sys.argv[1])
with private_copy(folder, read_manifest(folder, family="tiny", version=1)):
    print("copied", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_copy_is_removed_once_its_process_has_been_killed_and_not_before(
    version: VersionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "polyhead-sweep-of-another").mkdir(parents=True)
    (temporary / "polyhead-copy-link").symlink_to(version.folder)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    others = set(temporary.iterdir())
    command = [sys.executable, "-c", KILLED, str(version.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as loading:
        assert loading.stdout is not None
        assert loading.stdin is not None
        assert loading.stdout.readline() == b"copied\n"
        (copy,) = set(temporary.iterdir()) - others
        with private_copy(version.folder, version.manifest) as mine:
            remove_abandoned_copies()
            assert (copy / "weights.bin").exists()
            assert (mine / "weights.bin").exists()
        loading.stdin.close()
        assert loading.wait(240) == -signal.SIGKILL

    assert (copy / "weights.bin").exists()
    remove_abandoned_copies()
    assert set(temporary.iterdir()) == others
    assert (version.folder / "weights.bin").exists()
