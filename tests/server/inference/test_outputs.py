"""Selecting heads and queries, and converting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyhead_server.inference.outputs import convert, select

WEIGHTS = np.random.default_rng(0).random((2, 4, 5, 5), np.float32)


@given(st.permutations(range(4)).flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])), st.data())
def test_selecting_is_indexing(heads: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 4))
    queries = range(start, data.draw(st.integers(start + 1, 5)))

    selected = select(WEIGHTS, {1: heads, 2: queries})

    np.testing.assert_array_equal(selected, WEIGHTS[:, heads][:, :, list(queries)])


def test_a_range_is_a_view() -> None:
    assert np.shares_memory(select(WEIGHTS, {1: range(1, 3), 2: range(2)}), WEIGHTS)


def test_half_precision_is_numpy_s_and_overflow_is_infinite() -> None:
    np.testing.assert_array_equal(convert(WEIGHTS, "FP16"), WEIGHTS.astype(np.float16))
    assert np.isposinf(convert(np.array([1e30], np.float32), "FP16"))


def test_bytes_are_off_by_half_a_step_at_most() -> None:
    scaled = convert(WEIGHTS, "UINT8")

    assert scaled.dtype == np.uint8
    assert np.abs(scaled / 255 - WEIGHTS).max() <= 1 / 510 + 1e-7


def test_bytes_of_what_is_no_weight_stay_in_range() -> None:
    odd = np.array([np.nan, -1, 2, np.inf, -np.inf, 0, 1], np.float32)

    assert convert(odd, "UINT8").tolist() == [0, 0, 255, 255, 0, 0, 255]


def test_full_precision_is_not_copied() -> None:
    assert convert(WEIGHTS, "FP32") is WEIGHTS


def test_what_has_its_datatype_already_is_not_converted() -> None:
    for values in (np.array([3, 7], np.int32), np.array([3, 7], np.uint8), np.array([True, False])):
        datatype = {"int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}[values.dtype.name]
        np.testing.assert_array_equal(convert(values, datatype), values)
