"""Checkpoints of late interaction, as PyLate and sentence-transformers write them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tests.late_checkpoints import (
    DOCUMENT_LENGTH,
    QUERY_LENGTH,
    WIDTH,
    late_model,
    late_tokenizer,
    write_dense,
    write_modules,
    write_pylate,
    write_transformer,
)

from polyhead_model import CheckpointError, Encoder, EncoderConfig, TokenVectors, load_checkpoint
from polyhead_model.huggingface import read_checkpoint_info
from polyhead_model.late_interaction import TextForm

MASK, QUERY_PREFIX, DOCUMENT_PREFIX = 4, 135, 136


@pytest.fixture(scope="module")
def pylate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pylate")
    tokenizer = late_tokenizer()
    write_pylate(folder, *late_model(tokenizer), tokenizer)
    return folder


def edited(folder: Path, file: str, **changes: Any) -> Path:
    """The folder with some fields of one file changed; None leaves a field out."""
    path = folder / file
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    return folder


def test_a_folder_of_pylate_says_what_queries_and_documents_are(pylate: Path) -> None:
    checkpoint = load_checkpoint(pylate)

    head: Any = checkpoint.encoder.config.token_vectors
    assert [layer.width for layer in head.dense] == [WIDTH]
    assert head.expansion_id == MASK
    assert len(head.skipped_ids) == 7  # those of the tokenizer's vocabulary: < > [ ] / : .
    assert checkpoint.prompts.forms == {
        "query": TextForm(
            prefix_id=QUERY_PREFIX, max_tokens=QUERY_LENGTH, fill_id=MASK, fill_to=QUERY_LENGTH
        ),
        "document": TextForm(prefix_id=DOCUMENT_PREFIX, max_tokens=DOCUMENT_LENGTH),
    }
    assert checkpoint.prompts.texts == {"query": "", "document": ""}
    assert checkpoint.max_tokens == 60  # the positions, not the limit of PyLate's last text


@pytest.mark.parametrize(
    ("changes", "form", "expansion_id"),
    [
        ({"attend_to_expansion_tokens": True}, (QUERY_PREFIX, 12, MASK, 12), None),
        ({"do_query_expansion": False}, (QUERY_PREFIX, 12, None, 0), None),
        ({"query_prefix": ""}, (None, 12, MASK, 12), MASK),
        ({"query_length": None}, (QUERY_PREFIX, 32, MASK, 32), MASK),  # PyLate's default
    ],
)
def test_settings_of_pylate_count(
    pylate: Path, tmp_path: Path, changes: dict[str, Any], form: tuple[Any, ...], expansion_id: int | None
) -> None:
    folder = edited(
        shutil.copytree(pylate, tmp_path, dirs_exist_ok=True), "config_sentence_transformers.json", **changes
    )

    checkpoint: Any = load_checkpoint(folder)

    found = checkpoint.prompts.forms["query"]
    assert (found.prefix_id, found.max_tokens, found.fill_id, found.fill_to) == form
    assert checkpoint.encoder.config.token_vectors.expansion_id == expansion_id


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        (
            "config_sentence_transformers.json",
            {"query_prefix": "[R] "},
            "query_prefix must be one of the tokens",
        ),
        ("config_sentence_transformers.json", {"document_length": 0}, "document_length must be at least 1"),
        ("config_sentence_transformers.json", {"skiplist_words": "."}, "skiplist_words must be a list"),
        ("config_sentence_transformers.json", {"do_query_expansion": 1}, "must be true or false"),
        ("1_Dense/config.json", {"use_residual": True}, "use_residual must be false"),
        ("1_Dense/config.json", {"module_input_name": "other"}, "only vectors of tokens go through"),
        ("1_Dense/config.json", {"in_features": 9}, "in_features must be 16"),
    ],
)
def test_what_cannot_be_served_is_rejected(
    pylate: Path, tmp_path: Path, file: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        load_checkpoint(edited(shutil.copytree(pylate, tmp_path, dirs_exist_ok=True), file, **changes))


def test_a_prompt_that_texts_have_no_words_of_can_be_the_default(pylate: Path) -> None:
    prompts = read_checkpoint_info(pylate, prompt_name="document").prompts

    assert (prompts.default, prompts.form) == (
        "",
        TextForm(prefix_id=DOCUMENT_PREFIX, max_tokens=DOCUMENT_LENGTH),
    )
    assert read_checkpoint_info(pylate).prompts.form is None
    assert read_checkpoint_info(pylate, prompt_name="").prompts.form is None
    with pytest.raises(CheckpointError, match=r"must be one of prompts \('query', 'document'\), was 'other'"):
        read_checkpoint_info(pylate, prompt_name="other")


def test_modules_without_a_pooling_are_not_taken_for_those_of_pylate(pylate: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pylate, tmp_path, dirs_exist_ok=True)
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "SentenceTransformer"}')

    with pytest.raises(CheckpointError, match=r"then \(if wanted\) Pooling.*were Transformer, Dense"):
        read_checkpoint_info(folder)


def write_multi_vector(
    folder: Path, mask: Mapping[str, Any] = MappingProxyType({}), **transformer: Any
) -> Path:
    """Write a checkpoint as sentence-transformers writes a `MultiVectorEncoder`."""
    tokenizer = late_tokenizer()
    model, weight = late_model(tokenizer)
    write_transformer(folder, model, tokenizer)
    write_dense(folder / "1_Dense", weight, module_input_name="token_embeddings")
    for name, config in (
        ("2_MultiVectorMask", {"skiplist_words": ["."], "skiplist_tasks": ["document"], **mask}),
        ("3_Normalize", {"module_input_name": "token_embeddings"}),
    ):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    write_modules(
        folder, Transformer="", Dense="1_Dense", MultiVectorMask="2_MultiVectorMask", Normalize="3_Normalize"
    )
    expansion = {"strategy": "fixed", "attend": False, "token": None, "length": 12}
    settings = {"document_length": 20, "query_expansion": expansion} | transformer
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    prompts = {"prompts": {"query": "[Q] ", "document": "[D] "}, "model_type": "MultiVectorEncoder"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def test_a_folder_of_sentence_transformers_says_so_too(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write_multi_vector(tmp_path))

    head: Any = checkpoint.encoder.config.token_vectors
    assert (len(head.skipped_ids), head.expansion_id) == (1, MASK)
    assert checkpoint.prompts.texts == {"query": "[Q] ", "document": "[D] "}
    assert checkpoint.prompts.forms == {
        "query": TextForm(max_tokens=12, fill_id=MASK, fill_to=12),
        "document": TextForm(max_tokens=20),
    }
    assert checkpoint.prompts.form is None

    edited(tmp_path, "config_sentence_transformers.json", default_prompt_name="query")
    prompts = read_checkpoint_info(tmp_path).prompts
    assert (prompts.default, prompts.form) == ("[Q] ", prompts.forms["query"])


@pytest.mark.parametrize(
    ("mask", "transformer", "named"),
    [
        ({"keep_only_token_ids": [5]}, {}, "keep_only_token_ids must be empty"),
        ({"skiplist_tasks": ["query"]}, {}, "skiplist_tasks must be"),
        ({}, {"query_expansion": {"strategy": "other", "length": 3}}, "strategy 'fixed' or 'min'"),
        (
            {},
            {"query_expansion": {"strategy": "min", "length": 3, "token": "?"}},
            "must be one of tokenizer.json's",
        ),
    ],
)
def test_what_its_modules_cannot_be_is_rejected(
    tmp_path: Path, mask: dict[str, Any], transformer: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        load_checkpoint(write_multi_vector(tmp_path, mask, **transformer))


def test_tokens_that_fill_up_are_not_attended_to() -> None:
    config = EncoderConfig(
        d_model=8, heads=2, layers=2, vocabulary=10, token_vectors=TokenVectors(expansion_id=4)
    )
    encoder = Encoder(config).eval()
    ids, lengths = torch.tensor([[5, 6, 4, 7, 4, 4, 9], [4, 4, 5, 5, 5, 5, 5]]), torch.tensor([6, 2])
    attention = encoder(ids, lengths, need_weights=True).attention[0]
    found: Any = encoder(ids, lengths)

    assert attention[0, :, :6, :4].sum(-1).allclose(torch.ones(2, 6))  # the 4 inside is a token as any other
    assert not attention[0, :, :, 4:].any()
    assert attention[1, :, :2, :2].sum(-1).allclose(torch.ones(2, 2))  # nothing but such tokens
    lengths_of = torch.linalg.vector_norm(found.token_vectors, dim=-1)
    assert lengths_of[0].tolist() == pytest.approx([1] * 6 + [0])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"vocabulary": None}, "needs vocabulary"),
        ({"token_vectors": TokenVectors(skipped_ids=(10,))}, "skipped_ids must be between 0 and"),
        ({"causal": True}, "must have no expansion_id where causal"),
    ],
)
def test_token_vectors_fit_their_encoder(fields: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"vocabulary": 10, "token_vectors": TokenVectors(expansion_id=4)} | fields
    with pytest.raises(ValueError, match=named):
        EncoderConfig(d_model=8, heads=2, layers=1, **given)
