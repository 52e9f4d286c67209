"""A checkpoint is exported once, however many processes ask for it, and whatever becomes of them."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import write_checkpoint
from tests.exports import manifest_of

from polyhead_export import cached
from polyhead_export.cached import repository_of
from polyhead_export.options import ExportOptions

COMMAND = (sys.executable, "-m", "polyhead_export.cached")
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "polyhead" / "exports"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    head: Any = {"head": "ForSequenceClassification", "id2label": {0: "relevance"}}
    write_checkpoint(tmp_path / "small.v1", "bert", num_hidden_layers=1, **head)
    return tmp_path / "small.v1"


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The repositories that would have been exported to; nothing is, but for a manifest."""
    made: list[str] = []

    def export(options: ExportOptions) -> None:
        made.append(options.models.name)
        folder = options.models / str(options.name) / "1"
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()

    monkeypatch.setattr(cached, "_export", export)
    return made


def test_the_second_time_it_is_there(cache: Path, checkpoint: Path, exports: list[str]) -> None:
    repository = repository_of(checkpoint)

    assert repository.parent == cache
    assert (repository / "small-v1" / "1").is_dir()
    assert repository_of(checkpoint) == repository
    assert len(exports) == 1


def test_what_decides_what_is_exported_names_it(
    cache: Path, checkpoint: Path, exports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repository_of(checkpoint)
    (checkpoint / "notes.txt").write_text("of no importance")
    (checkpoint / "onnx").mkdir()
    (checkpoint / "onnx" / "config.json").write_text("{}")
    copy = shutil.copytree(checkpoint, checkpoint.parent / "copy" / checkpoint.name)
    assert repository_of(copy) == first

    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    others = {repository_of(checkpoint)}
    others.add(repository_of(shutil.copytree(copy, copy.parent / "renamed")))
    with monkeypatch.context() as patched:
        patched.setattr(cached, "version", lambda name: "9.9")
        others.add(repository_of(copy))

    others.add(repository_of(copy, "retrieval.query"))

    assert len(others - {first}) == 4
    assert repository_of(copy) == first


def test_a_task_that_there_is_no_adapter_for_is_said(cache: Path, checkpoint: Path, capfd: Captured) -> None:
    assert cached.app(["--task=retrieval.query", "--", str(checkpoint)], result_action="return_value") == 1

    assert "task must be left out, was 'retrieval.query'" in capfd.readouterr().err


def test_who_comes_meanwhile_waits(
    cache: Path, checkpoint: Path, exports: list[str], capfd: Captured
) -> None:
    from filelock import FileLock

    repository = repository_of(checkpoint)
    shutil.rmtree(repository)
    with FileLock(f"{repository}.lock"):
        other = subprocess.Popen(
            [*COMMAND, checkpoint], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stderr is not None
        assert other.stderr.readline() == "small-v1: waiting for another process, which exports it\n"
        (repository / "small-v1" / "1").mkdir(parents=True)
        (repository / "small-v1" / "1" / "manifest.json").touch()

    assert other.communicate(timeout=240) == (f"{repository}\n", "")
    assert other.returncode == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere must be the folder of a checkpoint: it has no config.json"),
        ("org/name@v1", "there is no folder org/name@v1"),
    ],
)
def test_what_is_no_checkpoint_is_said(
    name: str, message: str, cache: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    assert cached.cached(Path(name)) == 1

    said = capfd.readouterr()
    assert said.err.startswith(message)
    assert said.out == ""
    assert not cache.exists()


@pytest.mark.parametrize("missing", ["torch", "filelock"])
def test_without_what_an_export_takes_the_extra_is_named(
    missing: str, cache: Path, checkpoint: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    assert cached.cached(checkpoint) == 1

    assert capfd.readouterr().err == "--checkpoint needs the export extra: pip install 'polyhead[export]'\n"


def test_a_cache_that_cannot_be_written_is_named(
    checkpoint: Path, tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert cached.cached(checkpoint) == 1

    assert f"{tmp_path}/file" in capfd.readouterr().err


# ---- Processes that really export ---------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.kill()
        each.communicate()


def start(checkpoint: Path) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, checkpoint], **pipes, text=True, start_new_session=True)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_half_and_two_at_a_time_export_once(
    cache: Path, checkpoint: Path, started: list[subprocess.Popen[str]]
) -> None:
    started.append(killed := start(checkpoint))
    assert killed.stderr is not None
    while "writing weights" not in killed.stderr.readline():
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(240)
    (repository,) = [path for path in cache.iterdir() if path.is_dir()]
    assert not (repository / "small-v1").exists()

    started += [start(checkpoint), start(checkpoint)]
    printed = [each.communicate(timeout=800) for each in started[1:]]

    assert [out for out, _ in printed] == [f"{repository}\n"] * 2
    assert sum("hashing files" in err for _, err in printed) == 1
    assert sorted(path.name for path in repository.iterdir()) == ["small-v1"]
    manifest = manifest_of(repository / "small-v1" / "1")
    assert set(manifest["graphs"]) == {"fast", "attention", "pooled"}
