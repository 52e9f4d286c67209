"""Folders as they are published, through export and a real server, against sentence-transformers.

tests/model/test_published.py has them without an export.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tests.published import (
    EMBEDDERS,
    TEXTS,
    WIDTH,
    cross_encoder,
    sentence_transformer,
    write_nomic_embed_text,
    write_qwen3_reranker,
)
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_export import export_family, from_checkpoint
from polyhead_export.command import remarks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What sentence-transformers loads from the folders, by name."""
    found = {}
    for name, write in EMBEDDERS.items():
        folder = tmp_path_factory.mktemp(name)
        write(folder)
        if name == "nomic-embed-text":
            write_nomic_embed_text(folder, renamed=True)
        found[name] = sentence_transformer(folder)
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("models")
    for name, write in EMBEDDERS.items():
        folder = tmp_path_factory.mktemp(name)
        write(folder)
        source = from_checkpoint(
            folder, name, pooling="mean" if name == "eurobert" else None, matryoshka=(8, WIDTH)
        )
        built = source.build()
        export_family(built.encoder, name, repository, tokenizer=built.tokenizer, left_out=built.left_out)
    with serving(quick_settings(repository, device=device)) as server, Client(server.address) as one:
        yield one


@pytest.mark.parametrize("name", EMBEDDERS)
def test_what_is_published(name: str, references: Mapping[str, Any], client: Client) -> None:
    model = references[name]

    for prompt in (None, *client.model(name).prompts):
        found: Any = client.encode(TEXTS, model=name, prompt_name=prompt, truncate=True).pooled
        expected = model.encode(TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        one: Any = client.encode(TEXTS[0], model=name, prompt_name=prompt, dimensions=8).pooled
        of_length_1 = name in ("qwen3-embedding", "embeddinggemma")  # which end with Normalize
        cut = expected[0, :8] / (np.linalg.norm(expected[0, :8]) if of_length_1 else 1)
        np.testing.assert_allclose(one, cut, rtol=1e-5, atol=1e-5)


PAIRS = [*zip(TEXTS, [*TEXTS[1:], TEXTS[0]], strict=True), ("what is a cat?", "")]


@pytest.fixture(scope="module")
def reranking(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[tuple[Client, Any]]:
    """A client of a reranker that is a language model, and what sentence-transformers loads."""
    folder = tmp_path_factory.mktemp("reranker")
    write_qwen3_reranker(folder, max_tokens=300)
    built = from_checkpoint(folder, "reranker", strict=True).build()
    assert not any("pairs" in line for line in remarks(built))
    repository = tmp_path_factory.mktemp("models")
    export_family(built.encoder, "reranker", repository, graphs=["pooled"], tokenizer=built.tokenizer)
    with serving(quick_settings(repository, device=device)) as server, Client(server.address) as one:
        yield one, cross_encoder(folder)


@pytest.mark.parametrize("prompt", [None, "", "web", "other"])
def test_a_language_model_that_ranks(prompt: str | None, reranking: tuple[Client, Any]) -> None:
    client, model = reranking
    first, second = map(list, zip(*PAIRS, strict=True))

    found: Any = client.encode(first, text_pair=second, model="reranker", prompt_name=prompt, truncate=True)

    expected = model.predict(PAIRS, prompt_name=prompt or None)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(found.logits[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_ranks_and_evidence_of_a_pair_that_is_one_text(reranking: tuple[Client, Any]) -> None:
    client, model = reranking
    query, texts = "where is the cat?", ["on the mat", "no, it rained\n", "?"]

    found = client.rerank(query, texts, model="reranker", top=3, evidence=4)

    scores = model.predict([(query, text) for text in texts], activation_fn=torch.nn.Sigmoid())
    assert [each.index for each in found] == np.argsort(-scores).tolist()
    np.testing.assert_allclose(sorted(each.score for each in found), np.sort(scores), rtol=1e-5, atol=1e-5)
    for each in found:
        assert each.evidence
        for pair in each.evidence:
            for token, text in ((pair.query, query), (pair.text, texts[each.index])):
                assert 0 <= token.start < token.end <= len(text)
                assert token.token.strip("ĠĊ") in text[token.start : token.end]
