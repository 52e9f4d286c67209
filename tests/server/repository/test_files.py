"""What stands in a file's place is refused at once, whatever it is."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead_server.access.tls import Files
from polyhead_server.access.tokens import read_tokens
from polyhead_server.errors import RepositoryError, StartError
from polyhead_server.repository.files import open_regular, read_regular
from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import read_manifest


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's own path must be short
        os.close(folder)


PLACES: dict[str, Callable[[Path], object]] = {
    "p": os.mkfifo,
    "d": Path.mkdir,
    "s": listen,
    "l": lambda path: path.symlink_to(path.name),
}
"""By the letter of `ls -l`."""


@pytest.mark.parametrize("kind", PLACES)
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    PLACES[kind](tmp_path / "it")

    with pytest.raises(OSError, match=f"it must be a regular file, is {kind}[r-]"):
        open_regular(tmp_path / "it")


def test_a_device_is_not_opened_through_a_link_either(tmp_path: Path) -> None:
    (tmp_path / "it").symlink_to("/dev/zero")

    with pytest.raises(OSError, match="it must be a regular file, is crw"):
        read_regular(tmp_path / "it", limit=100, follow=True)


def test_a_link_is_followed_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")

    assert read_regular(tmp_path / "link", limit=7, follow=True) == b"content"


def test_a_file_with_a_hole_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "it").touch()
    os.truncate(tmp_path / "it", 2**40)

    with pytest.raises(OSError, match="it must have at most 1000 bytes"):
        read_regular(tmp_path / "it", limit=1000)


def test_no_file_of_a_version_is_waited_for(repository: Path, tmp_path: Path) -> None:
    source = repository / "tiny-tokens" / "1"
    manifest = read_manifest(source, family="tiny-tokens", version=1)
    for name in ("manifest.json", *manifest.files):
        folder = tmp_path / name
        folder.mkdir()
        for path in source.iterdir():
            if path.name == name:
                os.mkfifo(folder / name)
            else:
                (folder / path.name).write_bytes(path.read_bytes())
        with pytest.raises(RepositoryError, match=f"{name} cannot be read: .* a regular file, is prw"):
            verify(folder, read_manifest(folder, family="tiny-tokens", version=1))


def test_no_file_of_the_operator_s_is_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(StartError, match=r"--token-file must be a file that can be read, .* is prw"):
        read_tokens("--token-file", pipe)
    with pytest.raises(StartError, match=r"--tls-key must be a file that can be read, .* is prw"):
        Files(cert=pipe, key=pipe, client_ca=None).read()
