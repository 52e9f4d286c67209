"""What the command says of a checkpoint before it exports it, and of all that it can read."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.encoders import BERT, seeded
from tests.model_types import build, write

from polyhead_export import Built, ExportError, TokenizerFile, from_checkpoint
from polyhead_export.command import app
from polyhead_export.found import describe_found
from polyhead_export.options import ExportOptions
from polyhead_model import Classifier, Dense
from polyhead_model.hf_dialects import DIALECTS

Captured = pytest.CaptureFixture[str]


def test_a_trained_encoder(minilm_checkpoint: Path) -> None:
    assert describe_found(from_checkpoint(minilm_checkpoint, "minilm").build()) == (
        "found bert: 6 layers × 12 heads, D = 384, 22,565,376 parameters; mean pooling, normalised; no "
        "prompts; texts of up to 256 tokens"
    )


def test_heads_that_share_keys_and_heads_for_tasks(tmp_path: Path) -> None:
    write(tmp_path, "qwen3")

    assert describe_found(build(tmp_path)) == (
        "found qwen3: 1 layer × 4 heads (2 K/V), D = 16, 3,341 parameters; last pooling; classifier of "
        "texts, 3 labels; sparse vectors; token vectors; no prompts; up to 140 token ids"
    )


def test_prompts_and_narrower_vectors(tmp_path: Path) -> None:
    config = replace(BERT, pooling="cls", dense=(Dense(width=8),), classifier=Classifier(labels=("a",)))
    tokenizer = TokenizerFile(path=tmp_path, max_tokens=1024, prompts={"query": "q: ", "passage": "p: "})
    said = describe_found(Built(encoder=seeded(config), model_type="bert", tokenizer=tokenizer))

    assert said.partition("; ")[2] == (
        "cls pooling to 8 dimensions; classifier of texts, 1 label; prompts passage, query; texts of up to "
        "1,024 tokens"
    )
    tagger = replace(BERT, classifier=Classifier(labels=("a", "b"), pooling=None))
    assert "; not pooled; classifier of tokens, 2 labels; " in describe_found(
        Built(encoder=seeded(tagger), model_type="bert")
    )


def test_it_is_said_first(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object, **__: object) -> None:
        raise ExportError("ended here")

    monkeypatch.setattr(ExportOptions, "export", end)
    write(tmp_path / "small", "bert")
    with pytest.raises(ExportError, match="ended here"):
        app(
            ["--checkpoint", str(tmp_path / "small"), "--models", str(tmp_path / "models")],
            exit_on_error=False,
            result_action="return_value",
        )

    building, found, *rest = capsys.readouterr().err.splitlines()
    assert building == "small: building the encoder"
    assert found.startswith("small: found bert: 1 layer × 4 heads, ")
    assert any(line.startswith("small: text is not served") for line in rest)
    assert rest[-1] == "small: exporting fast, attention takes about 10 s"


def test_types_are_listed_within_80_columns(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    app(["--list"], exit_on_error=False, result_action="return_value")

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.strip() and line.split()[0] in DIALECTS] == sorted(
        DIALECTS
    )
