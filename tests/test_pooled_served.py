"""Scores and pooled vectors come from the graph that computes no others, where a family has it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import cross_encoder, sentence_transformer, write_checkpoint
from tests.numerics import close
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import export_family, from_checkpoint

pytestmark = pytest.mark.slow

FIRST = ["The cat sat.", "", "a b c d e f g h", "x"]
SECOND = ["a dog ran", "b", "", "Ein Satz, der länger ist als die"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A reranker and an embedder of sentence-transformers, by the folder of each."""
    folder = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(
        folder / "reranker", "bert", head="ForSequenceClassification", num_labels=1, inputs=["token_type_ids"]
    )
    write_checkpoint(folder / "bare", "roberta")
    embedder = sentence_transformer(folder / "bare", pooling="cls", normalise=True)
    embedder.save_pretrained(str(folder / "embedder"), create_model_card=False)
    return {"reranker": cross_encoder(folder / "reranker"), "embedder": embedder, "folder": folder}


@pytest.fixture(scope="module")
def models(theirs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for name in ("reranker", "embedder"):
        built = from_checkpoint(theirs["folder"] / name, name).build()
        export_family(built.encoder, name, repository, graphs=["pooled"], tokenizer=built.tokenizer)
    return repository


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[Client]:
    with serving(quick_settings(models)) as server, Client(server.address) as one:
        yield one


def runs(client: Client, model: str) -> int:
    return client.statistics(model)[0].execution_count


def test_scores_of_pairs(theirs: dict[str, Any], client: Client) -> None:
    expected = theirs["reranker"].predict(list(zip(FIRST, SECOND, strict=True)))
    before = runs(client, "reranker")

    scores: Any = client.encode(FIRST, text_pair=SECOND, model="reranker", output=False).logits
    alone: Any = client.encode(FIRST[0], text_pair=SECOND[0], model="reranker", output=False).logits

    np.testing.assert_allclose(scores[:, 0], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(alone, expected[:1], rtol=0, atol=1e-5)
    assert runs(client, "reranker") == before
    assert runs(client, "reranker.pooled") > 0


def test_vectors_of_texts(theirs: dict[str, Any], client: Client) -> None:
    expected = theirs["embedder"].encode(SECOND)

    pooled: Any = client.encode(SECOND, model="embedder", output=False).pooled
    every: Any = client.encode(SECOND, model="embedder")

    close(pooled, expected)
    close(every.pooled, expected)
    assert len(every.output) == len(SECOND)


def test_with_what_only_another_graph_has(client: Client) -> None:
    encoding = client.encode(SECOND, model="embedder", output=False, attention=True)

    assert encoding.attention is not None
    assert encoding.output is None
