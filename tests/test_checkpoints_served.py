"""Checkpoints through export and a real server, against sentence-transformers and transformers.

An export takes seconds, so not every combination is exported: every pooling is, with dialects, activations,
dense layers, normalisation and prompts spread over them, and classifiers of two kinds.
tests/model/test_sentence_transformers.py and tests/model/test_checkpoint.py have all combinations without an
export, and tests/test_configurations.py what no checkpoint can say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers
from tests.checkpoints import (
    OTHER_PROMPTS,
    ROBERTA,
    cross_encoder,
    sentence_transformer,
    tokens_of,
    write_checkpoint,
)
from tests.servers import quick_settings, serving

from polyhead_client import Client, InvalidRequest
from polyhead_export import export_family, from_checkpoint
from polyhead_export.command import remarks
from polyhead_model.config import Activation
from polyhead_model.task_heads import Pooling

POOLINGS: tuple[tuple[Pooling | None, ...], ...] = (
    (None, "mean", "last", "cls"),
    (None, "max", "weighted_mean", "mean_sqrt_len"),
)
DENSE = (torch.nn.Tanh(), None, torch.nn.GELU())
ACTIVATIONS = get_args(Activation)
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
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
    dense: tuple[Any, ...]
    truncate_dim: int | None


def trained() -> list[Trained]:
    return [
        Trained(
            name=f"checkpoint-{group}-{row}",
            dialect=DIALECTS[group][row],
            pooling=pooling,
            activation=ACTIVATIONS[(row + group) % len(ACTIVATIONS)],
            normalise=pooling is not None and (row + group) % 2 == 0,
            prompt=PROMPT if pooling is not None and (row // 2 + group) % 2 == 0 else None,
            dense=DENSE[: 3 * group + row] if pooling is not None and row != 2 else (),
            truncate_dim=6 if row == 2 else None,
        )
        for group in range(len(DIALECTS))
        for row, pooling in enumerate(POOLINGS[group])
    ]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What sentence-transformers loads from the folders that are exported."""
    found: dict[str, Any] = {}
    for row in trained():
        bare = tmp_path_factory.mktemp("bare")
        write_checkpoint(bare, row.dialect, activation=THEIR_ACTIVATIONS[row.activation])
        model = sentence_transformer(
            bare, pooling=row.pooling, normalise=row.normalise, prompt=row.prompt, dense=row.dense
        )
        if row.pooling:
            model.truncate_dim = row.truncate_dim
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


CLASSIFIERS: Mapping[str, Mapping[str, Any]] = {
    "bert": {"inputs": ["token_type_ids"], "num_labels": 1, "problem_type": "regression"},
    "electra": {
        "inputs": [],
        "id2label": {0: "no", 1: "yes"},
        "problem_type": "multi_label_classification",
    },
    "roberta": {"num_labels": 3},
}
"""Dialects of classifiers, which differ in whether pairs have token types, and what they are made with."""


@pytest.fixture(scope="module")
def rerankers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What sentence-transformers loads from the classifiers that are exported, one of them its own folder."""
    found = {}
    for dialect, options in CLASSIFIERS.items():
        folder = tmp_path_factory.mktemp("classifier")
        write_checkpoint(folder, dialect, head="ForSequenceClassification", **options)
        found[dialect] = cross_encoder(folder)
        if dialect == "bert":
            found[dialect].save_pretrained(str(folder / "saved"))
            folder = folder / "saved"
        built = from_checkpoint(folder, dialect, pooling="last", strict=True).build()
        said = any(
            each.startswith("ranks are scored by the sigmoid, as TEI does; ") for each in remarks(built)
        )
        assert said == (dialect == "bert")
        export_family(built.encoder, f"classifier-{dialect}", models, tokenizer=built.tokenizer)
    return found


@pytest.fixture(scope="module")
def client(models: Path, rerankers: Any, device: str) -> Iterator[Client]:
    with serving(quick_settings(models, device=device)) as server, Client(server.address) as one:
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

    encoding: Any = client.encode(sentences, model=row.name, attention=True)

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
    by_ids: Any = client.encode(
        batch["input_ids"].numpy(), attention_mask=batch["attention_mask"].numpy(), model=row.name
    )
    if row.pooling is None:
        assert encoding.pooled is None
        return
    expected = model.encode(sentences)
    np.testing.assert_allclose(encoding.pooled, expected, rtol=1e-5, atol=1e-5)
    # Callers who tokenise bring the prompt themselves.
    np.testing.assert_allclose(by_ids.pooled, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", [row for row in trained() if row.prompt], ids=lambda row: row.name)
def test_a_request_may_name_another_prompt(row: Trained, references: dict[str, Any], client: Client) -> None:
    model, sentences = references[row.name], texts(row.dialect)
    assert client.model(row.name).prompts == model.prompts
    assert OTHER_PROMPTS.items() <= model.prompts.items()

    for name in ("mine", "passage", "none"):
        pooled: Any = client.encode(sentences, model=row.name, prompt_name=name).pooled
        np.testing.assert_allclose(pooled, model.encode(sentences, prompt_name=name), rtol=1e-5, atol=1e-5)
    without: Any = client.encode(sentences, model=row.name, prompt_name="").pooled
    np.testing.assert_allclose(without, model.encode(sentences, prompt=""), rtol=1e-5, atol=1e-5)


def test_a_prompt_of_an_encoder_without_prompts_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="must be left out: this model has none, was 'query'"):
        client.encode("a cat", model="classifier-roberta", prompt_name="query")


@pytest.mark.parametrize("dialect", CLASSIFIERS)
def test_classifiers(dialect: str, rerankers: Mapping[str, Any], client: Client) -> None:
    model = rerankers[dialect]
    first = texts(dialect)
    second = [*first[1:], "a b c d e f g h " * 30]
    labels = tuple(model.model.config.id2label.values())
    expected = model.predict(list(zip(first, second, strict=True))).reshape(len(first), len(labels))
    scale = np.abs(expected).max()

    pairs: Any = client.encode(first, text_pair=second, model=f"classifier-{dialect}", truncate=True)
    alone: Any = client.encode(first[0], text_pair=second[0], model=f"classifier-{dialect}", attention=True)

    assert scale > 0.1
    np.testing.assert_allclose(pairs.logits, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(alone.logits, expected[0], rtol=0, atol=1e-5)
    assert pairs.labels == alone.labels == labels
    assert alone.attention[0].shape[1] == len(alone.tokens) == len(pairs.tokens[0])
    assert alone.pooled.shape == (16,)  # as asked for, beside the logits
    types = client.model(f"classifier-{dialect}").inputs.keys() & {"token_type_ids"}
    batch = model.tokenizer(first[:2], second[:2], padding=True, return_tensors="np")
    by_ids: Any = client.encode(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"] if types and "token_type_ids" in batch else None,
        model=f"classifier-{dialect}",
        pooled=False,
        output=False,
    )
    np.testing.assert_allclose(by_ids.logits, expected[:2], rtol=0, atol=1e-5)
    # A single text.
    with torch.inference_mode():
        one = model.model(**model.tokenizer(first[0], return_tensors="pt")).logits
    single: Any = client.encode(first[0], model=f"classifier-{dialect}").logits
    np.testing.assert_allclose(single, one[0].numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
@pytest.mark.parametrize("dialect", CLASSIFIERS)
def test_scores_are_those_of_transformers(dialect: str, rerankers: Mapping[str, Any], client: Client) -> None:
    """Of one label, of labels that do not exclude each other, and of those that do."""
    model, name = rerankers[dialect], f"classifier-{dialect}"
    classify = transformers.pipeline(
        "text-classification", model=model.model, tokenizer=model.tokenizer, top_k=None, device="cpu"
    )
    sentences = texts(dialect)

    for ours, theirs in zip(client.classify(sentences, model=name), classify(sentences), strict=True):
        assert [each.label for each in ours] == [each["label"] for each in theirs]
        np.testing.assert_allclose(
            [each.score for each in ours], [each["score"] for each in theirs], atol=1e-5
        )


def test_ranks_have_the_scores_of_the_checkpoint_if_asked_for(
    rerankers: Mapping[str, Any], client: Client
) -> None:
    query, passages = "the cat", texts("bert")
    theirs = rerankers["bert"].rank(query, passages)

    own = client.rerank(query, passages, model="classifier-bert", activation="checkpoint")
    ours = client.rerank(query, passages, model="classifier-bert")

    assert client.model("classifier-bert").outputs["logits"].activation == "identity"
    assert (
        [each.index for each in own]
        == [each.index for each in ours]
        == [each["corpus_id"] for each in theirs]
    )
    scores = np.array([each["score"] for each in theirs])
    np.testing.assert_allclose([each.score for each in own], scores, atol=1e-5)
    np.testing.assert_allclose([each.score for each in ours], 1 / (1 + np.exp(-scores)), atol=1e-5)


@pytest.mark.parametrize("row", [row for row in trained() if row.prompt], ids=lambda row: row.name)
def test_long_text_is_cut_with_its_prompt(row: Trained, references: dict[str, Any], client: Client) -> None:
    long = ["a b c d e f g h " * 30]

    pooled: Any = client.encode(long, model=row.name, truncate=True).pooled

    np.testing.assert_allclose(pooled, references[row.name].encode(long), rtol=1e-5, atol=1e-5)
