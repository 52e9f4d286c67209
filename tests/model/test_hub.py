"""Checkpoints of the Hugging Face hub, without a network: huggingface_hub says so, or has a cache."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyhead_model import CheckpointError
from polyhead_model.hub import files_of, local_checkpoint, name_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["/somewhere/else", "bare", "a/b/c", "../up/x", "org/na me", "org/@main"])
def test_what_is_no_name_of_the_hub_is_a_folder(name: str) -> None:
    assert local_checkpoint(Path(name)) == Path(name)


def test_a_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)

    assert local_checkpoint(Path("org/name")) == Path("org/name")


def test_without_a_network(cache: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"there is no folder org/name, and it cannot be downloaded .*check the name and the network, ",
    ) as raised:
        local_checkpoint(Path("org/name"))
    assert "\n" not in str(raised.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(CheckpointError, match=r"pip install 'polyhead\[hub\]', or download it elsewhere"):
        local_checkpoint(Path("org/name"))


def test_what_has_been_downloaded_needs_no_network(cache: Path) -> None:
    commit = "0" * 40
    snapshot = cache / "models--org--name" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "v1").write_text(commit)

    assert local_checkpoint(Path("org/name@v1")) == snapshot


@pytest.mark.parametrize("weights", [True, False])
def test_only_what_is_needed_is_downloaded(monkeypatch: pytest.MonkeyPatch, weights: bool) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options.pop("revision")))
        files = [
            "config.json",
            "1_Pooling/config.json",
            "model.safetensors",
            "2_Dense/model.safetensors",
            "model-00001-of-00002.safetensors",
            "vocab.txt",
            "sentencepiece.bpe.model",
            "tokenizer.json",
            "pytorch_model.bin",
            "modeling_own.py",
            "onnx/model.onnx",
            "onnx/config.json",
            "README.md",
            "model.h5",
        ]
        asked.append(list(filter_repo_objects(files, **options)))
        return "/there"

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))

    assert local_checkpoint(Path("org/na.me@refs/pr/1"), weights=weights) == Path("/there")
    assert asked[0] == ("org/na.me", "refs/pr/1")
    assert [name for name in asked[1] if not name.endswith(".safetensors")] == [
        "config.json",
        "1_Pooling/config.json",
        "vocab.txt",
        "sentencepiece.bpe.model",
        "tokenizer.json",
        "README.md",
    ]
    assert sum(name.endswith(".safetensors") for name in asked[1]) == (3 if weights else 0)


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("BAAI/bge-small-en-v1.5", "bge-small-en-v1.5"),
        ("org/na.me@refs/pr/1", "na.me"),
        ("org/name@v1", "name"),
        ("./all-MiniLM-L6-v2/", "all-MiniLM-L6-v2"),
        ("here/../mine", "mine"),
        ("/", ""),
    ],
)
def test_a_checkpoint_has_the_name_of_its_folder_or_of_the_hub(checkpoint: str, name: str) -> None:
    assert name_of(Path(checkpoint)) == name


def test_files_are_those_that_are_downloaded(tmp_path: Path) -> None:
    names = ["config.json", "1_Pooling/config.json", "model-1.safetensors", "vocab.txt", "README.md"]
    for name in [
        *names,
        "onnx/config.json",
        "openvino/x.json",
        "pytorch_model.bin",
        ".git/HEAD",
        "notes.txt",
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.json").mkdir()

    assert sorted(path.relative_to(tmp_path).as_posix() for path in files_of(tmp_path)) == sorted(names)
    with pytest.raises(CheckpointError, match="must be the folder of a checkpoint: it has no"):
        files_of(tmp_path / "onnx" / "nothing")
