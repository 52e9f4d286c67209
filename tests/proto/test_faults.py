"""Faults: in words, and over the wire."""

import pytest

from polyhead_proto.faults import Fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(field="x", problem="must be FP32"), "x must be FP32"),
        (Fault(field="mask", index=(2, 0, 1), problem="must be 0"), "mask[2, 0, 1] must be 0"),
        (
            Fault(field="text", also="text_pair", index=(3,), problem="must be short"),
            "text[3] and text_pair[3] must be short",
        ),
        (
            Fault(aspect="dimension 1 (T) of ", field="x", problem="must be 4"),
            "dimension 1 (T) of x must be 4",
        ),
        (
            Fault(field="text", problem="was 9 tokens", remedy="shorten it", parameter="truncate"),
            "text was 9 tokens: shorten it",
        ),
    ],
)
def test_a_fault_is_said_in_words_and_comes_back_from_json(fault: Fault, words: str) -> None:
    assert str(fault) == words
    assert Fault.from_json(fault.to_json()) == fault


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b'{"index": 3}',
        b'{"index": ["a"]}',
        b'{"index": [null]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_fault_is_none(written: bytes) -> None:
    assert Fault.from_json(written) is None


def test_a_fault_too_long_for_metadata_is_not_sent() -> None:
    assert Fault(field="x", problem="é" * 1000).to_json() == b""
    assert Fault.from_json(b"") is None
