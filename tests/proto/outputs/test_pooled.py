"""Pooled vectors in fewer bits."""

from typing import Any, get_args

import numpy as np
import pytest

from polyhead_proto.outputs.pooled import VectorPrecision, normalised, quantised

VECTORS = np.random.default_rng(3).normal(size=(50, 19)).astype(np.float32)
RANGES: Any = np.array([VECTORS[:20].min(0), VECTORS[:20].max(0)])


@pytest.mark.slow
@pytest.mark.parametrize("precision", get_args(VectorPrecision))
def test_they_are_those_of_sentence_transformers(precision: VectorPrecision) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    expected = quantize_embeddings(VECTORS, precision, ranges=RANGES)

    found = quantised(VECTORS, precision, RANGES if "int8" in precision else None)

    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_what_is_out_of_range_or_constant_stays_in_8_bits() -> None:
    odd = np.array([[np.nan, np.inf, -np.inf, 3, 7]], np.float32)
    ranges = np.array([[0, 0, 0, 3, 3], [1, 1, 1, 3, 3]], np.float32)

    assert quantised(odd, "uint8", ranges).tolist() == [[0, 255, 0, 0, 4]]
    assert quantised(odd, "int8", ranges).tolist() == [[-128, 127, -128, -128, -124]]
    assert quantised(odd, "binary", None).tolist() == [[0b01011000 - 128]]


def test_zeros_have_no_direction() -> None:
    found = normalised(np.array([[0, 0], [3, -4]], np.float32))

    np.testing.assert_array_equal(found, np.array([[0, 0], [0.6, -0.8]], np.float32))
