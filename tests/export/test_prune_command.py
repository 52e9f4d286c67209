"""`polyhead prune` as a user calls it; tests/test_pruned_served.py serves what it makes."""

from pathlib import Path

import pytest
from tests.exports import manifest_of

from polyhead_export import ExportError
from polyhead_export.prune_command import app


def prune(*arguments: str | Path) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


def test_what_is_there_is_kept_unless_it_was_pruned_otherwise(tmp_path: Path) -> None:
    (tmp_path / "encoder.json").write_text('{"d_model": 16, "heads": 4, "layers": 1}')
    source = ("--encoder", tmp_path / "encoder.json", "--name", "small", "--models", tmp_path / "models")
    prune(*source, "--heads", "0:1")

    with pytest.raises(ExportError, match="--if-exists skip, replace or add"):
        prune(*source, "--heads", "0:1")
    with pytest.raises(ExportError, match="its encoder, weights, pruning differ"):
        prune(*source, "--heads", "0:2", "--if-exists", "add")
    prune(*source, "--heads", "0:2", "--if-exists", "skip")  # nothing

    assert manifest_of(tmp_path / "models" / "small" / "1")["encoder"]["kept_heads"] == [[0, 2, 3]]
