"""`polyhead prune` as a user calls it; tests/test_pruned_served.py serves what it makes."""

import json
from pathlib import Path
from typing import Any

import pytest

from polyhead_export import ExportError, ParityError
from polyhead_export.prune_command import app


def prune(*arguments: str | Path) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


def test_what_could_not_be_verified_is_added_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_for_attention(*arguments: Any) -> dict[str, Any]:
        if arguments[1].name == "attention":
            raise ParityError("attention.onnx: planted")
        return {}

    (tmp_path / "encoder.json").write_text('{"d_model": 16, "heads": 4, "layers": 1}')
    source = ("--encoder", tmp_path / "encoder.json", "--name", "small", "--models", tmp_path / "models")
    with monkeypatch.context() as patch:
        patch.setattr("polyhead_export.version.measure_neighbours", fails_for_attention)
        with pytest.raises(ExportError, match=r"without attention: .* --if-exists add"):
            prune(*source, "--heads", "0:1")
    with pytest.raises(ExportError, match="--if-exists skip, replace or add"):
        prune(*source, "--heads", "0:1")
    with pytest.raises(ExportError, match="its encoder, weights, pruning differ"):
        prune(*source, "--heads", "0:2", "--if-exists", "add")
    with pytest.raises(ExportError, match=r"is without attention, .* give --if-exists add"):
        prune(*source, "--heads", "0:1", "--if-exists", "skip")
    prune(*source, "--heads", "0:1", "--if-exists", "add")
    prune(*source, "--heads", "0:2", "--if-exists", "skip")  # nothing

    manifest = tmp_path / "models" / "small" / "1" / "manifest.json"
    assert {*json.loads(manifest.read_text())["graphs"]} == {"fast", "attention"}
