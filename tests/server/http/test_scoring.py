"""Calls that score texts: TEI's `/predict`."""

from typing import Any

import numpy as np
import pytest
from tests.conftest import SENTIMENTS
from tests.server.http.conftest import OverHttp

QUERY = "the cat"
TEXTS = ["a dog sat on the mat", "i saw that", "the big cat", "the small red house"]
LONG = "the cat sat on the mat " * 5


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


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/predict", {"inputs": []}, 400, "inputs must have at least 1 item, had 0"),
        ("/predict", {"inputs": 5}, 400, "inputs must be a string or an array, was 5"),
        (
            "/predict",
            {"inputs": ["a", "b", "c"]},
            400,
            "inputs must be a text, or a list of one or two texts",
        ),
        ("/predict", {"inputs": [["a"], ["b", "mat " * 20]]}, 400, "inputs[1] must be at most 16 tokens"),
        ("/predict", {"inputs": [["a"], [5]]}, 400, "inputs[1][0] must be a string, was 5"),
        ("/predict", {"inputs": [["a"], ["mat " * 20]]}, 400, "inputs[1] must be at most 16 tokens"),
        ("/predict", {"inputs": "a", "model": "none"}, 404, "none"),
        (
            "/predict",
            {"inputs": "a", "parameters": {"aggregation_strategy": "simple"}},
            400,
            "aggregation_strategy must be left out: sentiment classifies texts",
        ),
        (
            "/predict",
            {"inputs": "a", "model": None},
            400,
            "must have the field model, one of those that classify",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    scoring: OverHttp, path: str, body: dict[str, Any], status: int, named: str
) -> None:
    answered = scoring.post(path, {"model": "sentiment", **body})

    assert answered.status == status
    assert named in answered.error
