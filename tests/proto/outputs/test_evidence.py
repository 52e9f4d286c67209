"""Evidence is what a plain loop over tokens finds."""

from typing import Any

import numpy as np
import pytest

from polyhead_proto.outputs.evidence import evidence_layers, evidence_of

SPECIAL = (-1, -1, -1)


def spans_of(*words: tuple[int, int] | None) -> Any:
    return np.array([SPECIAL if word is None else (*word, 0) for word in words], np.int32)


@pytest.mark.parametrize(
    ("spans", "query", "text"),
    [
        (spans_of(None, (0, 2), (3, 5), None, (0, 4), (4, 6), (7, 9), None), [1, 2], [4, 5, 6]),
        (spans_of((0, 2), (3, 5), (0, 4), (4, 6)), [0, 1], [2, 3]),  # no token stands between them
        (spans_of(None, None, (2, 4), None, (0, 4), None), [2], [4]),  # a prompt comes first
        (spans_of(None, (0, 2), None, None), [], []),  # one text is empty
        (spans_of(None, None, None), [], []),
    ],
)
def test_pairs_are_of_a_token_of_each_text(spans: Any, query: list[int], text: list[int]) -> None:
    random = np.random.default_rng(5)
    size = len(spans)
    layers = random.random((3, size, size)).astype(np.float32)
    tokens = [f"t{at}" for at in range(size)]

    found = evidence_of(layers, spans, tokens, count=100)

    expected = {}
    for first in query:
        for second in text:
            shares = [
                layer[one, other] / layer[one].sum()
                for layer in layers.astype(np.float64)
                for one, other in ((first, second), (second, first))
            ]
            expected[first, second] = sum(shares) / len(shares)
    assert {(pair.query.index, pair.text.index): pair.weight for pair in found} == pytest.approx(expected)
    assert [pair.weight for pair in found] == sorted((pair.weight for pair in found), reverse=True)
    for pair in found:
        for one in (pair.query, pair.text):
            assert (one.token, one.start, one.end) == (tokens[one.index], *spans[one.index, :2])


def test_of_equal_pairs_the_earlier_come() -> None:
    spans = spans_of((0, 1), (2, 3), None, (0, 1), (2, 3))

    found = evidence_of([np.ones((5, 5), np.float32)], spans, list("abcde"), count=3)

    assert [(pair.query.index, pair.text.index) for pair in found] == [(0, 3), (0, 4), (1, 3)]


def test_tokens_that_gather_nothing_have_no_weight() -> None:
    found = evidence_of([np.zeros((3, 3), np.float32)], spans_of((0, 1), None, (0, 1)), list("abc"), count=1)

    assert [pair.weight for pair in found] == [0]


def test_the_last_layer_counts_only_alone() -> None:
    assert evidence_layers([4, 0, 2]) == [0, 2]
    assert evidence_layers([5]) == [5]
