"""Messages that would take many times their size in memory are refused before they are parsed."""

from typing import Any

import pytest
from tests.repeated_fields import CASES, is_varint, message, one, sized

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.wire import (
    MOST_DIMENSIONS,
    MOST_FIELDS_IN_ALL,
    MOST_NUMBERS,
    SMALL_BYTES,
    check_expansion,
)


@pytest.mark.parametrize("field", CASES)
def test_every_field_that_repeats_is_counted(field: str) -> None:
    kind, path = CASES[field]
    most = MOST_FIELDS_IN_ALL - len(path) + 1
    below, above = (message(path, one(path[-1]) * count) for count in (most, most + 1))

    check_expansion(below, kind)
    kind.FromString(below)
    with pytest.raises(
        InvalidRequestError, match=r"at most 65,536 fields in all, has more, the last of them \w+\.\w+"
    ):
        check_expansion(above, kind)


VARINTS = [name for name, (_, path) in CASES.items() if is_varint(path[-1])]


@pytest.mark.parametrize("field", [name for name in VARINTS if not name.endswith(".shape")])
def test_packed_integers_are_counted(field: str) -> None:
    """Of two bytes each, or of one; in one piece, or in several."""
    kind, path = CASES[field]
    half = MOST_NUMBERS // 2
    below = message(path, sized(path[-1].number, b"\x80\x01" * half) + sized(path[-1].number, b"\x01" * half))
    above = message(path, sized(path[-1].number, b"\x01" * (MOST_NUMBERS + 1)))

    check_expansion(below, kind)
    with pytest.raises(
        InvalidRequestError, match=rf"at most 2,097,152 numbers, .* in \w+\.{path[-1].name}: send"
    ):
        check_expansion(above, kind)


@pytest.mark.parametrize("field", [name for name in VARINTS if name.endswith(".shape")])
def test_a_shape_has_few_numbers(field: str) -> None:
    """In each tensor, also in several pieces; of two bytes each, or of one."""
    kind, (*way, shape) = CASES[field]
    other = bytes(SMALL_BYTES)  # of which each byte would be a number
    half = MOST_DIMENSIONS // 2
    pieces = sized(shape.number, b"\x80\x01" * half) + sized(shape.number, b"\x01" * half)
    below = message((*way, shape), pieces) * 3 + sized(way[0].number, sized(1, other))
    packed, one_more = pieces + sized(shape.number, b"\x01"), sized(shape.number, other)

    tensor: Any = next(iter(getattr(kind.FromString(below), way[0].name)))
    assert len(tensor.shape) == MOST_DIMENSIONS
    check_expansion(below, kind)
    for above in (packed, one_more):
        with pytest.raises(InvalidRequestError, match=r"InferInputTensor.shape must have at most 64 numbers"):
            check_expansion(below + message((*way, shape), above), kind)


def test_what_reading_takes_follows_from_what_there_is() -> None:
    """Numbers as objects of protobuf and NumPy: 8 bytes in either."""
    numbers = 2**20
    message = sized(5, sized(5, sized(3, b"\x01" * numbers)))

    assert 16 * numbers < check_expansion(message, pb.ModelInferRequest) < 32 * numbers
    assert check_expansion(sized(5, b"") * 1000, pb.ModelInferRequest) >= 50 * 1000
    assert check_expansion(b"", pb.ModelInferRequest) == 0


def test_raw_contents_are_not_limited_so() -> None:
    check_expansion(
        pb.ModelInferRequest(raw_input_contents=[bytes(2**23)]).SerializeToString(), pb.ModelInferRequest
    )


@pytest.mark.parametrize(("name", "number", "width"), [("fp32_contents", 6, 4), ("fp64_contents", 7, 8)])
def test_numbers_of_fixed_size_are_counted(name: str, number: int, width: int) -> None:
    def request(count: int) -> bytes:
        return sized(5, sized(5, sized(number, bytes(count * width))))

    assert len(getattr(pb.ModelInferRequest.FromString(request(3)).inputs[0].contents, name)) == 3
    check_expansion(request(MOST_NUMBERS), pb.ModelInferRequest)
    with pytest.raises(
        InvalidRequestError, match=rf"at most 2,097,152 numbers, .* InferTensorContents.{name}: send"
    ):
        check_expansion(request(MOST_NUMBERS + 1), pb.ModelInferRequest)
