"""Heads, queries and datatypes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.selection import convert, parse_selector, select

WEIGHTS = np.random.default_rng(0).random((2, 4, 5, 5), np.float32)


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("0,3", [0, 3]),
        ("3,0", [3, 0]),
        ("1:4", [1, 2, 3]),
        ("3,0:2", [3, 0, 1]),
        (" 2 , 0 : 2 ", [2, 0, 1]),
        ("0:4", [0, 1, 2, 3]),
    ],
)
def test_indices_and_ranges_are_read_in_their_order(text: str, indices: list[int]) -> None:
    assert list(parse_selector("heads", text, "a").resolve(4, "H")) == indices


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "a", "-1", "1:", ":2", "2:2", "3:1", "1:2:3", "1.0", "٣", "0;1"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="parameter heads of a must be indices such as '0,3' or '0:4'"
    ):
        parse_selector("heads", text, "a")


@pytest.mark.parametrize("text", ["4", "0:5", "0,999999999", "3,4"])
def test_what_is_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be between 0 and H-1 \(3\), was"):
        parse_selector("heads", text, "a").resolve(4, "H")


def test_a_selector_as_long_as_a_book_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at most 65536 characters"):
        parse_selector("heads", "0," * 50_000 + "0", "a")


@given(st.permutations(range(4)).flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])), st.data())
def test_selecting_is_indexing(heads: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 4))
    queries = range(start, data.draw(st.integers(start + 1, 5)))

    selected = select(WEIGHTS, heads, queries)

    np.testing.assert_array_equal(selected, WEIGHTS[:, heads][:, :, list(queries)])


def test_a_range_is_a_view() -> None:
    assert np.shares_memory(select(WEIGHTS, range(1, 3), range(2)), WEIGHTS)


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
