"""Copies of the test repository, to be damaged."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Edit = Callable[[Callable[[dict[str, Any]], None]], None]


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    """A copy of the test repository."""
    return shutil.copytree(repository, tmp_path / "models")


@pytest.fixture
def folder(models: Path) -> Path:
    """Version 1 of the tiny family."""
    return models / "tiny" / "1"


@pytest.fixture
def edit(folder: Path) -> Edit:
    """Changes the manifest of the tiny family."""

    def change(how: Callable[[dict[str, Any]], None]) -> None:
        fields = json.loads((folder / "manifest.json").read_text())
        how(fields)
        (folder / "manifest.json").write_text(json.dumps(fields))

    return change


@pytest.fixture
def record(folder: Path, edit: Edit) -> Callable[[str], None]:
    """Makes the manifest agree with a file that was changed."""

    def change(name: str) -> None:
        content = (folder / name).read_bytes()
        entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        edit(lambda fields: fields["files"].update({name: entry}))

    return change
