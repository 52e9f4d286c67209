"""CUDA's libraries are found anywhere on Python's path."""

import sys
from pathlib import Path

import pytest

from polyhead_server.engine import cuda_libraries as libraries

WANTED = ["libcudart.so.99", "libnvrtc.so.99", "libcublasLt.so.99", "libcublas.so.99"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was loaded, in this order: files that are there, and names of what was loaded before."""
    done: list[str] = []

    def load(library: str) -> None:
        name = library.rpartition("/")[2]
        if name not in done and not Path(library).is_file():
            raise OSError(f"{library}: cannot open shared object file")
        done.append(name)

    monkeypatch.setattr("ctypes.CDLL", load)
    monkeypatch.setattr("onnxruntime.cuda_version", "99.0", raising=False)
    monkeypatch.setattr("sys.path", [str(tmp_path / "a"), str(tmp_path / "b")])
    return done


def wheel(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()


def preload_dlls() -> None:
    """Says what onnxruntime says: files of its own by their paths, the others by their names."""
    sys.stdout.write("Failed to load /site/nvidia/cudnn/lib/libcudnn.so.9: wrong ELF class" + "\n")
    for name in [*WANTED, "libcudnn.so.9", "libcufft.so.12"]:
        sys.stdout.write(
            f"Failed to load {name}: {name}: cannot open shared object file: No such file or directory" + "\n"
        )
    sys.stdout.write("Please follow the instructions to install CUDA." + "\n")


def test_libraries_of_wheels_elsewhere_on_the_path_are_loaded(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxruntime.preload_dlls", preload_dlls)
    wheel(tmp_path / "a" / "nvidia" / "cu99" / "lib", *WANTED)
    wheel(tmp_path / "b" / "nvidia" / "cudnn" / "lib", "libcudnn.so.9")

    assert libraries.preload() == ["libcufft.so.12"]
    assert list(dict.fromkeys(loaded)) == [*WANTED, "libcudnn.so.9"]
    assert capfd.readouterr().out == ""


def test_what_is_missing_is_named_once(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.preload_dlls", preload_dlls)

    assert libraries.preload() == ["libcudnn.so.9", *WANTED, "libcufft.so.12"]
    assert loaded == []
