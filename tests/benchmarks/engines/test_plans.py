"""Texts are batched in process, and come back in their order."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.checkpoints import bert_tokenizer

from benchmarks.engines.plans import BatchPlan, Ids, Vectors, pad, pool, run_in_batches, token_ids


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_vectors_are_in_the_order_of_their_texts(by_length: bool, lanes: int) -> None:
    ids = [[number] * length for number, length in enumerate([3, 9, 1, 4, 7])]
    ran: list[list[int]] = []

    def run(batch: Sequence[Ids]) -> Vectors:
        ran.append([len(each) for each in batch])
        return np.array([[each[0]] for each in batch], np.float32)

    with ThreadPoolExecutor(lanes) as threads:
        vectors = run_in_batches(ids, BatchPlan(batch=2, by_length=by_length, lanes=lanes), run, threads)

    assert vectors[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert sorted(ran) == sorted([[9, 7], [4, 3], [1]] if by_length else [[3, 9], [1, 4], [7]])


def test_padding() -> None:
    feeds = pad([[5, 6, 7], [8]])

    assert feeds["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert feeds["token_type_ids"].tolist() == [[0] * 3] * 2
    assert feeds["lengths"].tolist() == [3, 1]


def test_padding_does_not_change_the_mean() -> None:
    states = np.array(
        [[[3.0, 0.0], [0.0, 3.0], [1e6, 0.0]], [[0.0, 2.0], [1e6, 1e6], [7.0, 7.0]]], np.float32
    )

    np.testing.assert_allclose(pool(states, np.array([2, 1])), [[0.5**0.5, 0.5**0.5], [0, 1]], rtol=1e-6)


def test_token_ids_that_are_given_stay() -> None:
    assert token_ids(bert_tokenizer(), [[5, 6], [7]]) == [[5, 6], [7]]
    assert token_ids(bert_tokenizer(), ["a", "bc"]) == [
        bert_tokenizer().encode("a").ids,
        bert_tokenizer().encode("bc").ids,
    ]
