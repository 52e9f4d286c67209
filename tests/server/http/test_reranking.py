"""Calls that rank texts: TEI's `/rerank` and Cohere's, and the evidence for ranks."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import FAMILIES, TEXT_MAX_TOKENS
from tests.server.http.conftest import OverHttp, over_http
from tests.server.http.test_scoring import LONG, QUERY, TEXTS, logits
from tests.waiting import until

from polyhead_client import Client
from polyhead_export import TokenizerFile, export_family
from polyhead_model import Classifier, Encoder
from polyhead_server.http import texts as ranking
from polyhead_server.serving.budget import Reservation


def test_rerank_gives_the_best_first(scoring: OverHttp) -> None:
    """The one model that can do it need not be named."""
    raw = logits(scoring, "reranker", [QUERY] * len(TEXTS), TEXTS)[:, 0]

    ranked = scoring.post("/rerank", {"query": QUERY, "texts": TEXTS, "return_text": True}).json
    scores = scoring.post("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}).json

    assert [one["index"] for one in ranked] == np.argsort(-raw).tolist()
    assert [one["text"] for one in ranked] == [TEXTS[one["index"]] for one in ranked]
    np.testing.assert_allclose([one["score"] for one in ranked], 1 / (1 + np.exp(np.sort(-raw))), atol=1e-6)
    assert all(one.keys() == {"index", "score"} for one in scores)
    np.testing.assert_allclose([one["score"] for one in scores], np.sort(-raw) * -1, atol=1e-6)


def test_the_order_is_that_of_logits(scoring: OverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large logits have the same score: their sigmoid is 1 in fp32."""
    order = np.argsort(-logits(scoring, "reranker", [QUERY] * len(TEXTS), TEXTS)[:, 0]).tolist()
    assert order != sorted(order)
    monkeypatch.setattr(ranking, "scores_of", lambda logits, _: np.ones_like(logits))

    ranked = scoring.post("/rerank", {"query": QUERY, "texts": TEXTS}).json

    assert [(one["index"], one["score"]) for one in ranked] == [(at, 1.0) for at in order]


@pytest.mark.parametrize("version", ["1", "2"])
def test_coheres_call(scoring: OverHttp, version: str) -> None:
    ranked = scoring.post("/rerank", {"query": QUERY, "texts": TEXTS}).json
    call = {"model": "reranker", "query": QUERY, "top_n": 2}
    path = f"/v{version}/rerank"

    reply = scoring.post(path, {**call, "documents": TEXTS, "max_tokens_per_doc": None}).json
    texts = scoring.post(
        path, {**call, "documents": [{"text": text} for text in TEXTS], "return_documents": True}
    ).json

    assert [(one["index"], one["relevance_score"]) for one in reply["results"]] == [
        (one["index"], one["score"]) for one in ranked[:2]
    ]
    assert [one["document"]["text"] for one in texts["results"]] == [
        TEXTS[one["index"]] for one in reply["results"]
    ]
    assert reply["meta"]["api_version"] == {"version": version}
    assert reply["model"] == "reranker"
    assert reply["usage"]["total_tokens"] == reply["meta"]["tokens"]["input_tokens"] > len(TEXTS)


def test_coheres_call_cuts_long_texts(scoring: OverHttp) -> None:
    """Its clients cannot ask for that."""
    call = {"query": QUERY, "model": "reranker"}
    cut = scoring.post("/rerank", {**call, "texts": [*TEXTS, LONG], "truncate": True}).json

    reply = scoring.post("/v2/rerank", {**call, "documents": [*TEXTS, LONG]}).json
    rejected = scoring.post("/v2/rerank", {**call, "documents": [LONG], "truncate": False})

    assert [(one["index"], one["relevance_score"]) for one in reply["results"]] == [
        (one["index"], one["score"]) for one in cut
    ]
    assert rejected.status == 400
    assert rejected.error.startswith("query and documents[0] must be at most 16 tokens")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/rerank", {"query": QUERY}, "must have the field texts"),
        ("/rerank", {"query": QUERY, "texts": []}, "texts must have at least 1 item, had 0"),
        ("/rerank", {"query": QUERY, "texts": ["a", 5]}, "texts[1] must be a string, was 5"),
        ("/rerank", {"query": QUERY, "texts": ["a"], "model": "sentiment"}, "must be a reranker"),
        (
            "/rerank",
            {"query": QUERY, "texts": ["a"] * 2049},
            "texts must have at most 2048 items, had 2049",
        ),
        (
            "/v1/rerank",
            {"query": QUERY, "documents": [{"title": "a"}]},
            "documents[0] must have the field text",
        ),
        (
            "/v2/rerank",
            {"query": QUERY, "documents": ["a", "a cat sat"], "max_tokens_per_doc": 8},
            "max_tokens_per_doc must be left out, or at least the 16 tokens that reranker takes, was 8",
        ),
        (
            "/rerank",
            {"query": QUERY, "texts": ["a"], "return_evidence": 0},
            "return_evidence must be greater than or equal to 1, was 0",
        ),
        (
            "/v2/rerank",
            {"query": QUERY, "documents": ["a"] * 2048, "return_evidence": 9},
            "or from 1 to 8 pairs for each of 2048 texts, was 9",
        ),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(
    scoring: OverHttp, path: str, body: dict[str, Any], named: str
) -> None:
    answered = scoring.post(path, {"model": "reranker", **body})

    assert answered.status == 400
    assert named in answered.error


def test_a_long_query_comes_with_few_texts(scorers: Path) -> None:
    """A part holds no more text than a request may have, though the query is sent once."""
    query = "cat " * 4000
    with over_http(scorers, max_request_tokens=256) as web:
        most = web.running.runtime.settings.max_text_bytes
        assert 3 * len(query) > most > 2 * len(query)

        ranked = web.post("/rerank", {"query": query, "texts": TEXTS, "truncate": True})
        rejected = web.post("/rerank", {"query": query * 3, "texts": TEXTS[:1], "truncate": True})

        assert web.counted("polyhead_requests_total", "reranker", protocol="http", code="OK") == 2
        until(lambda: web.running.runtime.budget.bytes == 0)  # once the reply has been sent
    assert len(ranked.json) == len(TEXTS) == 4
    assert rejected.status == 413
    assert f"must have at most {most} bytes" in rejected.error


def token(each: dict[str, Any]) -> tuple[object, ...]:
    return each["index"], each["token"], each["start"], each["end"]


@pytest.fixture(scope="module")
def pruned(scorers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverHttp]:
    """A server of a reranker that lost a head of the layer from whose attention evidence is made."""
    config = replace(
        FAMILIES["tiny-tokens"],
        pooling=None,
        normalise=False,
        classifier=Classifier(labels=("relevance",)),
        kept_heads=((1,), (0, 1)),
    )
    tokenizer = TokenizerFile(path=scorers / "reranker" / "1" / "tokenizer.json", max_tokens=TEXT_MAX_TOKENS)
    folder = tmp_path_factory.mktemp("pruned")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        export_family(Encoder(config).eval(), "reranker", folder, tokenizer=tokenizer)
    with over_http(folder) as one:
        yield one


@pytest.mark.parametrize("server", ["scoring", pytest.param("pruned", marks=pytest.mark.slow)])
def test_evidence_is_that_of_the_client(server: str, request: pytest.FixtureRequest) -> None:
    """Which tests/client/test_scoring.py holds to attention itself. The texts are more than a batch has."""
    web: OverHttp = request.getfixturevalue(server)
    with Client(web.running.address) as client:
        ranked = client.rerank(QUERY, TEXTS, model="reranker", top=len(TEXTS), evidence=100)

    found = web.post("/rerank", {"query": QUERY, "texts": TEXTS, "return_evidence": 100}).json

    for each, expected in zip(found, ranked, strict=True):
        assert each["index"] == expected.index
        assert each["score"] == pytest.approx(expected.score, abs=1e-6)
        weights = [pair["weight"] for pair in each["evidence"]]
        assert weights == sorted(weights, reverse=True)
        assert {(token(pair["query"]), token(pair["text"])): pair["weight"] for pair in each["evidence"]} == {
            tuple((it.index, it.token, it.start, it.end) for it in (pair.query, pair.text)): pytest.approx(
                pair.weight, abs=1e-3
            )  # FP16 rounds the client's
            for pair in expected.evidence or ()
        }


def test_evidence_has_as_many_pairs_as_asked_for(scoring: OverHttp) -> None:
    call = {"query": QUERY, "model": "reranker"}
    every = scoring.post("/rerank", {**call, "texts": TEXTS, "return_evidence": 100}).json
    usual = scoring.post("/rerank", {**call, "texts": TEXTS, "return_evidence": True}).json
    none = scoring.post("/rerank", {**call, "texts": TEXTS, "return_evidence": False}).json
    cohere = {**call, "documents": TEXTS, "top_n": 2, "return_evidence": 3}
    best = scoring.post("/v2/rerank", cohere).json["results"]

    assert [one["evidence"] for one in usual] == [one["evidence"][:8] for one in every]
    assert [one["evidence"] for one in best] == [one["evidence"][:3] for one in every[:2]]
    assert all(one.keys() == {"index", "score"} for one in none)


@pytest.fixture(scope="module")
def narrow(scorers: Path) -> Iterator[OverHttp]:
    """A server whose messages are too small for attention."""
    with over_http(scorers, max_reply_bytes=1024) as one:
        yield one


def test_attention_is_not_sent_and_so_not_limited_by_messages(scoring: OverHttp, narrow: OverHttp) -> None:
    call = {"query": QUERY, "texts": TEXTS, "return_evidence": True}

    found, expected = narrow.post("/rerank", call).json, scoring.post("/rerank", call).json

    assert [one["index"] for one in found] == [one["index"] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert [token(pair["text"]) for pair in one["evidence"]] == [
            token(pair["text"]) for pair in other["evidence"]
        ]
    assert narrow.running.runtime.budget.bytes == 0


def test_memory_for_attention_is_released_with_each_request(
    narrow: OverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[int] = []
    add = Reservation.add

    def observed(self: Reservation, *arguments: Any) -> None:
        add(self, *arguments)
        most[-1] = max(most[-1], self.bytes)

    monkeypatch.setattr(Reservation, "add", observed)
    for count in (1, 50):
        most.append(0)
        texts = TEXTS[:1] * count
        assert (
            len(narrow.post("/rerank", {"query": QUERY, "texts": texts, "return_evidence": 1}).json) == count
        )

    assert most[1] < 10 * most[0]


def test_what_takes_too_much_memory_is_refused(scorers: Path) -> None:
    with over_http(scorers, max_working_bytes=16_000) as web:
        call = {"query": "a", "texts": ["a", " ".join(["cat"] * 12)]}

        plain, evident = web.post("/rerank", call), web.post("/rerank", {**call, "return_evidence": True})

    assert plain.status == 200
    assert evident.status == 413
    assert "bytes of memory, the limit is 16000" in evident.error


def test_a_family_without_attention_gives_no_evidence(scorers: Path, tmp_path: Path) -> None:
    shutil.copytree(scorers / "reranker", tmp_path / "reranker")
    path = tmp_path / "reranker" / "1" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["graphs"]["attention"]
    path.write_text(json.dumps(manifest))
    with over_http(tmp_path) as web:
        answered = web.post("/rerank", {"query": QUERY, "texts": TEXTS, "return_evidence": True})

    assert answered.status == 400
    assert "return_evidence needs a graph with attention, reranker has none" in answered.error
    assert "--if-exists add" in answered.error
