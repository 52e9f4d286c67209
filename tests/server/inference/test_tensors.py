"""One tensor of a request to one array."""

import pytest

from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.tensors import read_raw, read_strings


def test_bytes_that_do_not_fit_are_the_callers_fault() -> None:
    with pytest.raises(InvalidRequestError, match=r"x must have 12 bytes for FP32 \[3\], had 8"):
        read_raw("x", "FP32", [3], bytes(8))
    with pytest.raises(InvalidRequestError, match=r"text\[1\] must have 7 bytes as it says, 2 follow"):
        read_strings("text", [2], bytes(4) + b"\x07\x00\x00\x00ab")


def test_only_0_and_1_are_boolean() -> None:
    assert read_raw("mask", "BOOL", [3], b"\x00\x01\x01").tolist() == [False, True, True]
    with pytest.raises(InvalidRequestError, match="mask must hold bytes of 0 or 1, one was 2"):
        read_raw("mask", "BOOL", [3], b"\x00\x02\x01")
