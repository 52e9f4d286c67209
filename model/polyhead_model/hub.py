"""Checkpoints by name: download one from the Hugging Face hub, name an encoder after one, list its files."""

import os
import re
from fnmatch import fnmatch
from pathlib import Path

from polyhead_model.bge_m3 import LEXICAL, VECTORS
from polyhead_model.checkpoint_files import CheckpointError

_ON_HUB = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")

_WANTED = ("*.json", "vocab.txt", "merges.txt", "*.model", "README.md")
_WEIGHTS = ("*.safetensors", LEXICAL, VECTORS)
_UNWANTED = ("onnx/*", "openvino/*")
"""The same encoder in other formats."""


def local_checkpoint(checkpoint: Path, *, weights: bool = True) -> Path:
    """Return the folder of a checkpoint; download it if there is none and its name is one of the hub.

    Only safetensors, the two pickles of BGE-M3, JSON, the files of tokenizers and the model card are
    downloaded, into the cache of huggingface_hub, which shows the progress.

    Args:
        checkpoint: A folder, or `ORG/NAME` or `ORG/NAME@REVISION`.
        weights: Whether the weights are wanted, too.

    Raises:
        CheckpointError: It cannot be downloaded; the message says what to do.
    """
    match = _ON_HUB.fullmatch(str(checkpoint))
    if match is None or checkpoint.exists():
        return checkpoint
    name, revision = match["name"], match["revision"]
    instead = "or download it elsewhere and give its folder"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"there is no folder {checkpoint}; to download it from the Hugging Face hub, "
            f"pip install 'polyhead[hub]', {instead}"
        ) from error
    wanted = [*_WANTED, *(_WEIGHTS if weights else ())]
    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=list(_UNWANTED))
        )
    except Exception as error:  # no network, no such repository, no access: they have no base of their own
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"there is no folder {checkpoint}, and it cannot be downloaded from the Hugging Face hub "
            f"({type(error).__name__}: {reason}): check the name and the network, {instead}"
        ) from error


def name_of(checkpoint: Path) -> str:
    """Return the name of a checkpoint: that of the folder, or NAME of `ORG/NAME` on the hub."""
    match = _ON_HUB.fullmatch(str(checkpoint))
    path = os.path.abspath(checkpoint)  # noqa: PTH100 - .. without following links
    return Path(path if match is None or checkpoint.exists() else match["name"]).name


def files_of(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that decide what its encoder computes: those that are downloaded.

    Raises:
        CheckpointError: It is no folder of a checkpoint.
    """
    if not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        raise CheckpointError(f"{folder} must be the folder of a checkpoint: it has no config.json")
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        wanted = any(fnmatch(name, pattern) for pattern in (*_WANTED, *_WEIGHTS))
        if wanted and not any(fnmatch(name, pattern) for pattern in _UNWANTED) and path.is_file():
            found.append(path)
    return found
