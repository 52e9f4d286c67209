"""How far two arrays are apart."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.benchmarks.gpu.conftest import RunPart

from gpu.parity import difference, direction


def floats(values: object) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_differences_are_absolute_below_one_and_relative_above() -> None:
    assert difference(floats([0.5, 100.0]), floats([0.4, 101.0])) == pytest.approx(0.1)
    assert math.isclose(difference(floats([90.0]), floats([100.0])), 0.1, rel_tol=1e-6)


def test_what_is_no_number_is_infinitely_far() -> None:
    good = floats([1.0, 2.0])

    assert difference(floats([1.0, np.nan]), good) == math.inf
    assert difference(floats([1.0, np.inf]), good) == math.inf
    assert difference(floats([1.0]), good) == math.inf
    assert difference(good, good) == 0.0


def test_the_cosine_is_that_of_the_worst_vector() -> None:
    expected = floats([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])

    assert direction(3 * expected, expected) == 1.0
    turned = expected.copy()
    turned[0, 1] = [1.0, 1.0]
    assert math.isclose(direction(turned, expected), math.sqrt(0.5))
    assert direction(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)) == 1.0


def test_every_graph_is_compared(run: RunPart) -> None:
    rows = run("parity").of("graph")

    assert [(row["precision"], row["graph"]) for row in rows] == [("fp32", "fast"), ("fp32", "attention")]
    for row in rows:
        assert row["output"] < 1e-5
        assert row["pooled"] < 1e-5
        assert row["cosine"] > 0.99999
        assert row["operators"]["CPUExecutionProvider"]["MatMul"] >= 2
    assert rows[0]["attention"] is None
    assert rows[1]["attention"] < 1e-5
