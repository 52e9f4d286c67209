"""A repository behind a URL: what is not available is reported, and nothing unchecked is served."""

import errno
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.server.test_runtime import infer_request, loaded, output_of
from tests.waiting import reached

from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder, location
from polyhead_server.repository.scanning import VersionFolder, list_families, scan_family


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where downloads go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "polyhead" / "models"


@pytest.fixture
def remote(models: Path) -> RemoteFolder:
    """The repository, behind a URL."""
    return RemoteFolder(models.as_uri())


async def answer(remote: RemoteFolder) -> bytes:
    """What a server of its tiny family answers."""
    async with loaded(remote, ["tiny"]) as runtime:
        return await runtime.infer(infer_request())


def test_a_location_is_a_folder_or_a_url() -> None:
    assert location("models") == Path("models")
    assert location("s3://bucket/models") == RemoteFolder("s3://bucket/models")
    assert str(RemoteFolder("https://me:secret@host/models?token=secret")) == "https://host/models"


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("s3://bucket/models", "s3://bucket/models/tiny"),
        ("s3://bucket/models/", "s3://bucket/models/tiny"),
        ("s3://bucket/what?", "s3://bucket/what?/tiny"),
        ("https://host/models?token=a/b", "https://host/models/tiny?token=a/b"),
        ("https://host/models/?token=a", "https://host/models/tiny?token=a"),
    ],
)
def test_a_query_stays_at_the_end(url: str, inside: str) -> None:
    folder = RemoteFolder(url) / "tiny"

    assert folder == RemoteFolder(inside)
    assert folder.name == "tiny"


async def test_downloads_need_a_folder(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)

    with pytest.raises(StartError, match=r"no model could be loaded: tiny 1: XDG_CACHE_HOME must be set"):
        await answer(remote)


def test_what_is_behind_a_url_is_what_a_folder_holds(models: Path, remote: RemoteFolder) -> None:
    assert list_families(remote) == list_families(models) == ["tiny", "tiny-masked", "tiny-tokens"]
    for name in list_families(models):
        (here,), (there,) = scan_family(models / name), scan_family(remote / name)
        assert isinstance(here, VersionFolder)
        assert isinstance(there, VersionFolder)
        assert (there.version, there.manifest, there.source) == (1, here.manifest, remote / name / "1")
    assert scan_family(remote / "nothing") == []


async def test_it_is_served_from_a_copy_that_is_downloaded_once(
    models: Path, remote: RemoteFolder, cache: Path
) -> None:
    first = await answer(remote)
    (folder,) = cache.iterdir()
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    assert output_of(await answer(remote)).tolist() == output_of(first).tolist()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    assert {*times} == {"model.onnx", "attention.onnx", "weights.bin"}


async def test_a_copy_that_was_damaged_is_downloaded_again(remote: RemoteFolder, cache: Path) -> None:
    await answer(remote)
    (weights,) = cache.glob("*/weights.bin")
    weights.write_bytes(b"damaged")

    assert output_of(await answer(remote)).size == 48


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"weights\.bin cannot be downloaded: No such file or directory"),
        (b"short", r"weights\.bin must have \d+ bytes, has 5"),
        ("same size", r"weights\.bin does not have the SHA-256 that the manifest gives"),
        ("longer", r"weights\.bin must have \d+ bytes, has \d+"),
    ],
)
async def test_what_is_not_what_the_manifest_says_is_not_served(
    models: Path, remote: RemoteFolder, cache: Path, content: bytes | str | None, message: str
) -> None:
    weights = models / "tiny" / "1" / "weights.bin"
    real = weights.read_bytes()
    weights.unlink()
    if content is not None:
        weights.write_bytes({"same size": bytes(len(real)), "longer": real * 3}.get(content, content))  # type: ignore[arg-type]

    with pytest.raises(StartError, match=rf"no model could be loaded: tiny 1: {message}"):
        await answer(remote)

    assert {path.name for path in cache.glob("*/*")} <= {"model.onnx", "attention.onnx"}


async def test_a_poll_tries_a_download_that_failed_again(
    models: Path, remote: RemoteFolder, tmp_path: Path
) -> None:
    weights = models / "tiny" / "1" / "weights.bin"
    away = weights.rename(tmp_path / "away")

    async with loaded(remote, ["tiny"], repository_mode="poll", poll_seconds=0.01) as runtime:
        assert not runtime.serving("tiny")
        away.rename(weights)
        await reached(lambda: runtime.serving("tiny.attention"))  # the last
        assert output_of(await runtime.infer(infer_request())).size == 48


async def test_storage_that_is_away_takes_nothing_out_of_service(
    remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[RemoteFolder] = []

    def fail(folder: RemoteFolder) -> list[str]:
        looks.append(folder)
        raise OSError(errno.EIO, "the storage is away")

    async with loaded(remote, ["tiny"], repository_mode="poll", poll_seconds=0.01) as runtime:
        monkeypatch.setattr(RemoteFolder, "names", fail)
        await reached(lambda: len(looks) > 5)
        assert runtime.serving("tiny")
        assert output_of(await runtime.infer(infer_request())).size == 48


def test_what_a_driver_says_is_logged_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("403, url='https://me:secret@host/models?token=secret' of https://host/models")

    monkeypatch.setattr(fsspec.filesystem("memory"), "ls", fail)
    monkeypatch.setattr(LOGGER, "propagate", True)

    with pytest.raises(OSError, match=r"did not answer as expected \(RuntimeError\)"):
        RemoteFolder("memory://models").names()

    assert "403, url='https://…@host/models?…' of https://host/models" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "file:///nowhere",
            "must be a folder that can be read, file:///nowhere is not: No such",
        ),
        ("http://127.0.0.1:9/models", r"is not: .*(refused|did not answer as expected|Connect call failed)"),
        ("nonsense://models", "--models nonsense://models cannot be opened: Protocol not known: nonsense"),
        ("abfs://container/models", r"--models abfs://container/models cannot be opened: .*adlfs"),
    ],
)
def test_a_url_that_cannot_be_used_is_an_error_at_start(url: str, message: str) -> None:
    with pytest.raises(StartError, match=message):
        list_families(RemoteFolder(url))


def test_a_poll_sees_what_has_changed() -> None:
    storage = fsspec.filesystem("memory")
    storage.makedirs("/polled/one")
    remote = RemoteFolder("memory://polled")
    assert list_families(remote) == ["one"]
    storage.makedirs("/polled/two")
    assert list_families(remote) == ["one", "two"]
