"""Calls that score texts: TEI's `/predict` and `/rerank`, and Cohere's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SENTIMENTS
from tests.server.http.conftest import OverHttp, over_http

QUERY = "the cat"
TEXTS = ["a dog sat on the mat", "i saw that", "the big cat", "the small red house"]
LONG = "the cat sat on the mat " * 5


@pytest.fixture(scope="module")
def scoring(scorers: Path) -> Iterator[OverHttp]:
    """A server of a classifier and a reranker, whose batches hold three texts."""
    with over_http(scorers, max_batch_size=3) as one:
        yield one


def logits(web: OverHttp, model: str, texts: list[str], pairs: list[str] | None = None) -> Any:
    """What gRPC answers, text by text."""
    return np.concatenate(
        [
            web.running.infer(
                model, {"text": [text]} | ({} if pairs is None else {"text_pair": [pairs[at]]})
            )["logits"]
            for at, text in enumerate(texts)
        ]
    ).astype(np.float64)


def softmax(row: Any) -> Any:
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def as_mapping(labels: list[dict[str, Any]]) -> list[float]:
    """Scores by label; they must come with the best first."""
    scores = [one["score"] for one in labels]
    assert scores == sorted(scores, reverse=True)
    return [next(one["score"] for one in labels if one["label"] == label) for label in SENTIMENTS]


def test_predict_gives_the_probability_of_each_label(scoring: OverHttp) -> None:
    expected = [softmax(row) for row in logits(scoring, "sentiment", TEXTS)]

    single = scoring.post("/predict", {"inputs": TEXTS[0], "model": "sentiment"}).json
    many = scoring.post("/predict", {"inputs": [[text] for text in TEXTS], "model": "sentiment"}).json
    raw = scoring.post("/predict", {"inputs": [TEXTS[0]], "model": "sentiment", "raw_scores": True}).json

    np.testing.assert_allclose(as_mapping(single), expected[0], atol=1e-6)
    np.testing.assert_allclose([as_mapping(row) for row in many], expected, atol=1e-6)
    np.testing.assert_allclose(as_mapping(raw), logits(scoring, "sentiment", TEXTS[:1])[0], atol=1e-6)


def test_predict_takes_pairs(scoring: OverHttp) -> None:
    (expected,) = logits(scoring, "sentiment", [TEXTS[0]], [TEXTS[1]])

    single = scoring.post("/predict", {"inputs": TEXTS[:2], "model": "sentiment"}).json
    (listed,) = scoring.post("/predict", {"inputs": [TEXTS[:2]], "model": "sentiment"}).json

    np.testing.assert_allclose(as_mapping(single), softmax(expected), atol=1e-6)
    assert listed == single


def test_predict_takes_texts_beside_pairs(scoring: OverHttp) -> None:
    """In any order: a request for each run of one kind."""
    a, b, c, d = TEXTS
    given = [[a], [a, b], [c, a], [b, d], [d, c], [c], [a, a], [b]]

    found = scoring.post("/predict", {"inputs": given, "model": "sentiment"}).json

    for row, labels in zip(given, found, strict=True):
        (expected,) = logits(scoring, "sentiment", row[:1], row[1:] or None)
        np.testing.assert_allclose(as_mapping(labels), softmax(expected), atol=1e-6)


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


def test_long_texts_are_cut_where_that_is_asked_for(scoring: OverHttp) -> None:
    rejected = scoring.post("/rerank", {"query": QUERY, "texts": [*TEXTS, LONG]})
    cut = scoring.post("/rerank", {"query": QUERY, "texts": [*TEXTS, LONG], "truncate": True})

    assert rejected.status == 400
    assert rejected.error.startswith("query and texts[4] must be at most 16 tokens")
    assert len(cut.json) == 5


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
    ("path", "body", "status", "named"),
    [
        ("/predict", {"inputs": []}, 400, "inputs must have at least one text"),
        ("/predict", {"inputs": 5}, 400, "inputs of the request must be a string or an array"),
        (
            "/predict",
            {"inputs": ["a", "b", "c"]},
            400,
            "inputs must be a text, or a list of one or two texts",
        ),
        ("/predict", {"inputs": [["a"], ["b", "mat " * 20]]}, 400, "inputs[1] must be at most 16 tokens"),
        ("/predict", {"inputs": [["a"], [5]]}, 400, "inputs[1] must be a text"),
        ("/predict", {"inputs": [["a"], 5]}, 400, "inputs[1] must be a text"),
        ("/predict", {"inputs": [["a"], ["mat " * 20]]}, 400, "inputs[1] must be at most 16 tokens"),
        ("/predict", {"inputs": [["a"], ["\ud800"]]}, 400, "inputs[1] must be valid Unicode"),
        ("/predict", {"inputs": "a", "model": "none"}, 404, "none"),
        (
            "/predict",
            {"inputs": "a", "parameters": {}},
            400,
            "parameters must be left out: sentiment does not",
        ),
        (
            "/predict",
            {"inputs": "a", "model": None},
            400,
            "must have the field model, one of those that classify",
        ),
        (
            "/predict",
            {"inputs": "a", "truncation_direction": "Left"},
            400,
            "truncation_direction must be Right",
        ),
        ("/rerank", {"query": QUERY}, 400, "must have the field texts"),
        ("/rerank", {"query": QUERY, "texts": []}, 400, "texts must have at least one text"),
        ("/rerank", {"query": QUERY, "texts": ["a", 5]}, 400, "texts[1] must be a string, was 5"),
        ("/rerank", {"query": QUERY, "texts": ["a"], "model": "sentiment"}, 400, "must be a reranker"),
        (
            "/rerank",
            {"query": QUERY, "texts": ["a"] * 2049},
            400,
            "texts must be at most 2048 inputs, were 2049",
        ),
        (
            "/v1/rerank",
            {"query": QUERY, "documents": ["a"], "top_n": 0},
            400,
            "top_n must be at least 1, was 0",
        ),
        ("/v1/rerank", {"query": QUERY, "documents": [{"title": "a"}]}, 400, "documents[0] must be a string"),
        (
            "/v2/rerank",
            {"query": QUERY, "documents": ["a"], "max_tokens_per_doc": 8},
            400,
            "field 'max_tokens_per_doc' of the request is not known",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    scoring: OverHttp, path: str, body: dict[str, Any], status: int, named: str
) -> None:
    default = "sentiment" if path == "/predict" else "reranker"

    answered = scoring.post(path, {"model": default, **body})

    assert answered.status == status
    assert named in answered.error


def test_a_model_that_gives_no_logits_is_refused(web: OverHttp) -> None:
    answered = web.post("/predict", {"inputs": "the cat", "model": "tiny-tokens"})

    assert answered.status == 400
    assert "model must be a classifier or reranker" in answered.error
    assert "none" in web.post("/rerank", {"query": "a", "texts": ["b"]}).error


def test_a_long_query_comes_with_few_texts(scorers: Path) -> None:
    """A part holds no more text than a request may have, though the query is sent once."""
    query = "cat " * 4000
    with over_http(scorers, max_request_tokens=256) as web:
        most = web.running.runtime.settings.max_text_bytes
        assert 3 * len(query) > most > 2 * len(query)

        ranked = web.post("/rerank", {"query": query, "texts": TEXTS, "truncate": True})
        rejected = web.post("/rerank", {"query": query * 3, "texts": TEXTS[:1], "truncate": True})

        metrics = web.get("/metrics").body.decode()
        assert web.running.runtime.budget.bytes == 0
    assert len(ranked.json) == len(TEXTS) == 4
    assert 'requests_total{code="OK",model="reranker",protocol="http",version="1"} 2.0' in metrics
    assert rejected.status == 413
    assert f"must have at most {most} bytes" in rejected.error
