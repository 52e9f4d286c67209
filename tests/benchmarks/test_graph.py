"""Requests of a batch are answered by one run."""

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.graph import encode_each


class Recorder:
    """A session that doubles what exists, and remembers the sizes of its runs."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, _names: object, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        self.shapes.append(feeds["x"].shape)
        exists = np.arange(feeds["x"].shape[1]) < feeds["lengths"][:, None]
        return [2 * feeds["x"] * exists[:, :, None]]


@pytest.mark.parametrize(
    ("sizes", "ran"),
    [([(1, 4), (1, 4)], (2, 4, 3)), ([(1, 4), (2, 2), (1, 7)], (4, 7, 3)), ([(1, 5)], (1, 5, 3))],
)
def test_each_request_gets_its_own_rows(sizes: list[tuple[int, int]], ran: tuple[int, ...]) -> None:
    session = Recorder()
    requests = [np.random.default_rng(0).random((*size, 3), np.float32) for size in sizes]

    answers = encode_each(cast(Any, session), requests)

    assert session.shapes == [ran]
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer, 2 * request)
