"""The strongest edges, against sorting them all."""

from typing import Any

import numpy as np
import pytest

from polyhead_client import Edge, strongest_edges


@pytest.mark.parametrize(("T_query", "T_key", "top"), [(5, 5, 3), (2, 9, 4), (7, 3, 100), (1, 1, 1)])
def test_edges_are_the_heaviest_of_each_head(T_query: int, T_key: int, top: int) -> None:
    weights = np.random.default_rng(T_query * T_key).random((4, T_query, T_key), np.float32)
    skip = {0, 2} if T_key > 3 else set()

    for head, edges in zip(weights, strongest_edges(weights, top=top, skip=skip), strict=True):
        expected = sorted(
            (
                Edge(query, key, float(head[query, key]))
                for query in range(T_query)
                for key in range(T_key)
                if not {query, key} & skip
            ),
            key=lambda edge: -edge.weight,
        )
        assert edges == expected[:top]


def test_of_equal_edges_the_earlier_comes_first() -> None:
    assert strongest_edges(np.ones((1, 2, 2)), top=3) == [[(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0)]]


def test_without_positions_there_are_no_edges() -> None:
    assert strongest_edges(np.ones((2, 2, 2)), skip=[0, 1]) == [[], []]
    assert strongest_edges(np.ones((2, 0, 0))) == [[], []]


def test_weights_that_are_no_number_come_last() -> None:
    weights = np.array([[[np.nan, 0.25], [0.5, np.nan]]])

    assert [edge.weight for edge in strongest_edges(weights, top=2)[0]] == [0.5, 0.25]


def test_weights_of_a_batch_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"weights must be numbers \[H, T_query, T_key\], was float64 \[1, 2, 3, 3\]"
    ):
        strongest_edges(np.zeros((1, 2, 3, 3)))


def test_weights_may_be_a_list_of_numbers() -> None:
    weights = np.ones((1, 2, 2))

    listed: Any = weights.tolist()

    assert strongest_edges(listed, top=None) == strongest_edges(weights, top=4)
    with pytest.raises(ValueError, match=r"weights must be numbers \[H, T_query, T_key\], was object \[\]"):
        strongest_edges(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("top", [0, -1, 1.5, "3", True])
def test_a_wrong_number_of_edges_is_refused(top: Any) -> None:
    with pytest.raises(ValueError, match=f"top must be an integer, 1 or more, or None, was {top!r}"):
        strongest_edges(np.ones((1, 2, 2)), top=top)
