"""One tensor of the wire to one array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead_server.errors import InvalidRequestError
from polyhead_server.service.tensors import DTYPES, pack_strings, read_raw, read_strings


@pytest.mark.parametrize("datatype", DTYPES)
def test_raw_bytes_are_viewed_in_place(datatype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(DTYPES[datatype])
    raw = array.tobytes()

    read = read_raw("x", datatype, [2, 3, 4], raw)

    np.testing.assert_array_equal(read, array)
    assert np.shares_memory(read, np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize("offset", range(1, 8))
def test_unaligned_bytes_are_copied(offset: int) -> None:
    array = np.arange(6, dtype=np.int64)
    raw = memoryview(bytes(offset) + array.tobytes())[offset:]

    read = read_raw("x", "INT64", [6], raw)

    np.testing.assert_array_equal(read, array)
    assert read.flags.aligned


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_a_size_is_worked_out_before_memory_is_taken(shape: list[int]) -> None:
    product = 1
    for size in shape:
        product *= size
    if product:
        with pytest.raises(InvalidRequestError, match=f"must have {product * 4} bytes"):
            read_raw("x", "FP32", shape, b"")


texts = st.lists(st.text(max_size=20), max_size=5)


@given(st.lists(texts, max_size=4))
def test_strings_are_packed_and_read_back(rows: list[list[str]]) -> None:
    width = max(map(len, rows), default=0)
    packed = pack_strings(rows, width)

    read = read_strings("tokens", [len(rows), width], packed)

    expected = [[*row, *[""] * (width - len(row))] for row in rows]
    assert [element.decode() for element in read] == [text for row in expected for text in row]


@given(st.binary(max_size=60), st.integers(1, 6))
def test_junk_is_read_whole_or_refused(raw: bytes, count: int) -> None:
    try:
        elements = read_strings("text", [count], raw)
    except InvalidRequestError:
        return
    assert len(elements) == count
    assert sum(map(len, elements)) + 4 * count == len(raw)
