"""Messages that would take many times their size in memory are refused before they are parsed."""

from collections.abc import Iterator
from typing import cast

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from polyhead_proto import messages as pb
from polyhead_proto.expansion import MOST_FIELDS, MOST_NUMBERS, ExpansionError, check_expansion
from polyhead_proto.rpcs import RPCS
from polyhead_proto.wire import write_varint

SIZED, VARINT, FOUR_BYTES, EIGHT_BYTES = 2, 0, 5, 1
FIXED = {FieldDescriptor.TYPE_FLOAT: (FOUR_BYTES, 4), FieldDescriptor.TYPE_DOUBLE: (EIGHT_BYTES, 8)}


def sized(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | SIZED) + write_varint(len(content)) + content


def repeated_fields(
    descriptor: Descriptor, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The way to every field of a message, at any depth, that may be there many times."""
    for field in descriptor.fields:
        if field.is_repeated:
            yield (*path, field)
        if field.message_type is not None:
            yield from repeated_fields(field.message_type, (*path, field))


CASES = {
    f"{name}: {'.'.join(field.name for field in path)}": (rpc.request, path)
    for name, rpc in RPCS.items()
    for path in repeated_fields(cast(Descriptor, rpc.request.DESCRIPTOR))
}


def message(path: tuple[FieldDescriptor, ...], elements: bytes) -> bytes:
    for field in reversed(path[:-1]):
        elements = sized(field.number, elements)
    return elements


def is_varint(field: FieldDescriptor) -> bool:
    return (
        field.message_type is None
        and field.type not in FIXED
        and field.type not in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
    )


def one(field: FieldDescriptor) -> bytes:
    """The least bytes of one element."""
    if field.type in FIXED:
        wire_type, width = FIXED[field.type]
        return write_varint(field.number << 3 | wire_type) + bytes(width)
    return (
        write_varint(field.number << 3 | VARINT) + b"\x01" if is_varint(field) else sized(field.number, b"")
    )


@pytest.mark.parametrize("field", CASES)
def test_every_field_that_repeats_is_counted(field: str) -> None:
    kind, path = CASES[field]
    most = MOST_FIELDS - len(path) + 1
    below, above = (message(path, one(path[-1]) * count) for count in (most, most + 1))

    check_expansion(below, kind)
    kind.FromString(below)
    with pytest.raises(
        ExpansionError, match=r"at most 65,536 fields in all, has more, the last of them \w+\.\w+"
    ):
        check_expansion(above, kind)


@pytest.mark.parametrize("field", [name for name, (_, path) in CASES.items() if is_varint(path[-1])])
def test_packed_integers_are_counted(field: str) -> None:
    """Of two bytes each, or of one; in one piece, or in several."""
    kind, path = CASES[field]
    half = MOST_NUMBERS // 2
    below = message(path, sized(path[-1].number, b"\x80\x01" * half) + sized(path[-1].number, b"\x01" * half))
    above = message(path, sized(path[-1].number, b"\x01" * (MOST_NUMBERS + 1)))

    check_expansion(below, kind)
    with pytest.raises(ExpansionError, match=rf"at most 2,097,152 numbers, .* in \w+\.{path[-1].name}: send"):
        check_expansion(above, kind)


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
        ExpansionError, match=rf"at most 2,097,152 numbers, .* InferTensorContents.{name}: send"
    ):
        check_expansion(request(MOST_NUMBERS + 1), pb.ModelInferRequest)
