"""Raw contents to arrays and strings, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead_proto import FILE
from polyhead_proto.datatypes import DTYPES, convert, pack_strings, to_array, triton_type, unpack_strings

WEIGHTS = np.random.default_rng(0).random((2, 4, 5, 5), np.float32)


def test_every_datatype_is_one_of_the_protocols() -> None:
    assert {triton_type(datatype) for datatype in [*DTYPES, "BYTES"]} == {
        *FILE.enum_types_by_name["DataType"].values_by_name
    } - {"TYPE_INVALID", "TYPE_BF16"}


@pytest.mark.parametrize("datatype", DTYPES)
def test_raw_bytes_are_viewed_in_place(datatype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(DTYPES[datatype])
    raw = array.tobytes()

    read = to_array("x", datatype, [2, 3, 4], raw)

    np.testing.assert_array_equal(read, array)
    assert np.shares_memory(read, np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize("offset", range(1, 8))
def test_unaligned_bytes_are_copied(offset: int) -> None:
    array = np.arange(6, dtype=np.int64)
    raw = memoryview(bytes(offset) + array.tobytes())[offset:]

    read = to_array("x", "INT64", [6], raw)

    np.testing.assert_array_equal(read, array)
    assert read.flags.aligned
    assert not read.flags.writeable


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_a_size_is_worked_out_before_memory_is_taken(shape: list[int]) -> None:
    product = 1
    for size in shape:
        product *= size
    if product:
        with pytest.raises(ValueError, match=f"x must have {product * 4} bytes"):
            to_array("x", "FP32", shape, b"")


@pytest.mark.parametrize(
    ("datatype", "shape", "complaint"),
    [
        ("BF16", [2], "x must have a datatype of BOOL, .*, FP64, was 'BF16'"),
        ("FP32", [3], r"x must have 12 bytes for FP32 \[3\], had 8"),
        ("FP32", [2, -4], r"x must have -32 bytes for FP32 \[2, -4\], had 8"),
        ("FP32", [-1, -2], r"x must have a shape that NumPy can hold, was \[-1, -2\]"),
        ("FP32", [0, 2**62], r"x must have 0 bytes for FP32 \[0, 4611686018427387904\], had 8"),
    ],
)
def test_bytes_that_are_no_such_array_are_refused(datatype: str, shape: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        to_array("x", datatype, shape, bytes(8))


def test_an_empty_shape_that_no_array_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="x must have a shape that NumPy can hold, was"):
        to_array("x", "FP32", [0, 2**62, 2**62], b"")


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_strings_are_packed_and_read_back(elements: list[bytes]) -> None:
    assert unpack_strings("tokens", [len(elements)], pack_strings(elements)) == elements


@given(st.binary(max_size=60), st.integers(-2, 6))
def test_junk_is_read_whole_or_refused(raw: bytes, count: int) -> None:
    try:
        elements = unpack_strings("text", [count], raw)
    except ValueError:
        return
    assert len(elements) == count
    assert sum(map(len, elements)) + 4 * count == len(raw)


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
