"""Checkpoints through export and a real server, against sentence-transformers and transformers.

An export takes seconds, so not every combination is exported: every pooling of each kind of graph is, with
dialects, activations, normalisation and prompts spread over them. tests/model/test_sentence_transformers.py
has all combinations without an export, and tests/test_configurations.py what no checkpoint can say.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.checkpoints import ROBERTA, sentence_transformer, tokens_of, write_checkpoint
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import Built, export_family, from_checkpoint
from polyhead_model.config import Activation, Pooling

pytestmark = pytest.mark.usefixtures("one_thread")

POOLINGS = (None, *get_args(Pooling))
ACTIVATIONS = get_args(Activation)
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
PROMPT = "query: "

DIALECTS = (("bert", "distilbert", "electra", "bert, one token type"), (*ROBERTA, "roberta"))
"""Checkpoints by what their graphs are made of: with positions that count, and that leave padding out."""


@dataclass(frozen=True)
class Trained:
    """A checkpoint that was exported."""

    name: str
    dialect: str
    pooling: Pooling | None
    activation: Activation
    normalise: bool
    prompt: str | None


def trained() -> list[Trained]:
    return [
        Trained(
            name=f"checkpoint-{group}-{row}",
            dialect=DIALECTS[group][row],
            pooling=pooling,
            activation=ACTIVATIONS[(row + group) % len(ACTIVATIONS)],
            normalise=pooling is not None and (row + group) % 2 == 0,
            prompt=PROMPT if pooling is not None and (row // 2 + group) % 2 == 0 else None,
        )
        for group in range(len(DIALECTS))
        for row, pooling in enumerate(POOLINGS)
    ]


def test_the_rows_are_spread() -> None:
    """What is spread over the rows is spread: nothing is bound to one pooling."""
    rows = trained()
    assert {row.dialect for row in rows} == {name for group in DIALECTS for name in group}
    for field in ("activation", "normalise", "prompt"):
        poolings = {getattr(row, field): set[str | None]() for row in rows}
        for row in rows:
            poolings[getattr(row, field)].add(row.pooling)
        assert all(len(found) >= 2 for found in poolings.values())


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What sentence-transformers loads from the folders that are exported."""
    found: dict[str, Any] = {}
    for row in trained():
        bare = tmp_path_factory.mktemp("bare")
        write_checkpoint(bare, row.dialect, activation=THEIR_ACTIVATIONS[row.activation])
        model = sentence_transformer(bare, pooling=row.pooling, normalise=row.normalise, prompt=row.prompt)
        model.save_pretrained(str(bare / "saved"), create_model_card=False)
        found[row.name] = type(model)(str(bare / "saved"), device="cpu") if row.pooling else model
    return found


@pytest.fixture(scope="module")
def models(references: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for row in trained():
        model = references[row.name]
        folder = tmp_path_factory.mktemp("checkpoint")
        model.save_pretrained(str(folder), create_model_card=False)
        built = from_checkpoint(folder, row.name, strict=True).build()
        export_family(built.encoder, row.name, repository, tokenizer=built.tokenizer)
    return repository


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[Client]:
    with serving(quick_settings(models)) as server, Client(server.address) as one:
        yield one


def texts(dialect: str) -> list[str]:
    pad = tokens_of(dialect)["pad"]
    return [
        "The cat sat.",
        "",
        f"a{pad} b {pad}{pad} c d e f g h",
        "x",
        "Ein Satz, der länger ist als die",
        pad,
    ]


@pytest.mark.parametrize("row", trained(), ids=lambda row: row.name)
def test_checkpoints(row: Trained, references: dict[str, Any], client: Client) -> None:
    model, sentences = references[row.name], texts(row.dialect)

    encoding = client.encode(sentences, model=row.name, attention=True)

    assert encoding.output is not None
    assert encoding.attention is not None
    vectors = model.encode(sentences, output_value="token_embeddings", convert_to_tensor=True)
    for ours, theirs in zip(encoding.output, vectors, strict=True):
        np.testing.assert_allclose(ours[: len(theirs)], theirs.numpy(), rtol=1e-5, atol=1e-5)
    batch = model[0].tokenizer(
        [(row.prompt or "") + text for text in sentences], padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        weights = model[0].model(**batch, output_attentions=True).attentions
    for layer, theirs in enumerate(weights):
        for index, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            np.testing.assert_allclose(
                encoding.attention[layer][index], theirs[index, :, :length, :length].numpy(), atol=1e-5
            )
    by_ids = client.encode(
        batch["input_ids"].numpy(), attention_mask=batch["attention_mask"].numpy(), model=row.name
    )
    if row.pooling is None:
        assert encoding.pooled is None
        return
    assert encoding.pooled is not None
    assert by_ids.pooled is not None
    expected = model.encode(sentences)
    np.testing.assert_allclose(encoding.pooled, expected, rtol=1e-5, atol=1e-5)
    # Callers who tokenise bring the prompt themselves.
    np.testing.assert_allclose(by_ids.pooled, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", [row for row in trained() if row.prompt], ids=lambda row: row.name)
def test_long_text_is_cut_with_its_prompt(row: Trained, references: dict[str, Any], client: Client) -> None:
    long = ["a b c d e f g h " * 30]

    pooled = client.encode(long, model=row.name, truncate=True).pooled

    assert pooled is not None
    np.testing.assert_allclose(pooled, references[row.name].encode(long), rtol=1e-5, atol=1e-5)


def test_the_manifest_and_the_server_tell_the_prompt(models: Path, client: Client) -> None:
    for row in trained():
        manifest = json.loads((models / row.name / "1" / "manifest.json").read_text())
        assert manifest["tokenizer"]["prompt"] == (row.prompt or "")
        assert manifest["left_out"] == []


def test_prompts_may_be_left_to_the_callers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "bare", "bert")
    model = sentence_transformer(tmp_path / "bare", pooling="mean", normalise=True, prompt=PROMPT)
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)

    def tokenizer_prompt(**options: bool) -> str:
        built: Built = from_checkpoint(tmp_path / "saved", "any", **options).build()
        assert built.tokenizer is not None
        return built.tokenizer.prompt

    assert tokenizer_prompt() == PROMPT
    assert not tokenizer_prompt(prompt=False)
