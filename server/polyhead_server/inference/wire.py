"""Split request messages without copying their tensors, and bound what parsing takes, before it is done.

What is left without `id` and raw contents, the header, describes the tensors. It is the same in the next
request of its kind, and is parsed once for all of them: see `templates`.

A number that has one byte on the wire has eight in memory, an empty string sixteen and more, an entry of a
map a hundred. So a small message, compressed on its way, could take many times its size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_proto.wire import MOST_FIELDS, fields_of, split
from polyhead_server.errors import InvalidRequestError, TooLargeError

LARGE = 512 * 1024
"""Bytes from which copying them takes longer than a hop to another thread and back, about 0.1 ms."""

MOST_FIELDS_IN_ALL = 65_536
"""The largest number of fields in a message and all messages inside it."""

MOST_NUMBERS = 2**21
"""The largest number of numbers in the contents of tensors."""

MOST_DIMENSIONS = 64
"""The largest number of numbers in all other fields of one message inside it: in its `shape`."""

SMALL_BYTES = 16_384
"""A message of this size is not worth counting: reading it takes little time, and not much memory."""

# What reading takes in memory, in bytes, as objects of protobuf, of Python and of NumPy together.
_BYTES_OF_A_SMALL_MESSAGE = 64
"""For each byte of a small message."""
_BYTES_OF_A_BYTE = 2
_BYTES_OF_A_FIELD = 128
_BYTES_OF_A_NUMBER = 24

_LONGEST_NUMBER = 10
"""The most bytes of a number of varying size."""
_CONTENTS = pb.InferTensorContents.DESCRIPTOR.name

_WIDTHS = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}
"""Of numbers of fixed size, in bytes. The protocol has no others."""
_NEVER_PACKED = frozenset({FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING})
_LAST_BYTES = bytes(range(0x80))

InputContent: TypeAlias = Any
"""Of an input: raw, as bytes or a view of them; or, where it came in another form, texts or an array."""

M = TypeVar("M", bound=Message)
R = TypeVar("R", bytes, memoryview)

_ID = pb.ModelInferRequest.ID_FIELD_NUMBER
_RAW = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_MODEL = pb.ModelInferRequest.MODEL_NAME_FIELD_NUMBER
_VERSION = pb.ModelInferRequest.MODEL_VERSION_FIELD_NUMBER
_MAX_ID_BYTES = 1024


@dataclass(kw_only=True, slots=True)
class InferRequest:
    """A `ModelInferRequest` whose header is not parsed. Not frozen: that takes three times as long."""

    header: bytes
    """All but `id` and `raw_input_contents`: equal for requests that differ in their data only."""
    request_id: str
    contents: Sequence[InputContent]
    """In the order of the inputs. Raw ones are views of what the request came in, where they lie there."""
    size: int
    """The bytes that it keeps in memory: at least those of its raw contents."""
    most_bytes: int | None = None
    """The most bytes of a whole reply; None: those of a message."""
    kept_bytes: int = 0
    """What making what is kept of a whole reply costs beyond copying it, in bytes to copy."""


def split_infer(payload: bytes) -> InferRequest:
    """Split an inference request, without copying its raw contents.

    Raises:
        InvalidRequestError: The bytes are not such a message, or have too many fields or too long an id.
    """
    try:
        header, (ids, raw) = split(payload, _ID, _RAW)
        request_id = ""
        for content in ids:  # the last counts
            request_id = str(check_id(content), "utf-8")
    except (DecodeError, UnicodeDecodeError) as error:
        raise _not_a_message(pb.ModelInferRequest, payload) from error
    return InferRequest(header=header, request_id=request_id, contents=raw, size=len(payload))


def make_request(
    message: pb.ModelInferRequest, raw: Sequence[bytes | memoryview], *, kept: int = 0
) -> InferRequest:
    """Make a request of what has come in another form.

    Args:
        message: All but the raw contents. Its `id` is taken out of it.
        raw: The raw contents.
        kept: The bytes of what came, if raw contents are views of it.

    Raises:
        InvalidRequestError: The id is too long.
    """
    request_id = str(check_id(message.id.encode()), "utf-8")
    message.ClearField("id")
    header = message.SerializeToString(deterministic=True)
    packed = sum(len(content) for content in raw if isinstance(content, bytes))
    size = max(len(header), kept) + packed
    return InferRequest(header=header, request_id=request_id, contents=raw, size=size)


def check_id(content: R) -> R:
    """Return a request's id, in UTF-8, unless it is too long.

    Raises:
        InvalidRequestError: It is.
    """
    if len(content) > _MAX_ID_BYTES:
        raise InvalidRequestError(f"id must have at most {_MAX_ID_BYTES} bytes, had {len(content)}")
    return content


class Peeked(NamedTuple):
    """What is known of a header before it is parsed."""

    expanded_bytes: int
    """The most bytes of memory that reading it takes."""
    model: str
    version: str
    """Empty for the newest."""


def peek(request: InferRequest) -> Peeked:
    """Look for what must be known of a header before it is parsed. Takes long for a long one.

    Raises:
        InvalidRequestError: The bytes are not such a message, or reading them takes too much time.
    """
    names = {_MODEL: "", _VERSION: ""}
    try:
        expanded = check_expansion(request.header, pb.ModelInferRequest)
        for number, content in fields_of(memoryview(request.header)):
            if number in names and content is not None:
                names[number] = str(content, "utf-8")
    except (DecodeError, UnicodeDecodeError) as error:
        raise _not_a_message(pb.ModelInferRequest, request.header) from error
    return Peeked(expanded, names[_MODEL], names[_VERSION])


def parse_small(kind: type[M], payload: bytes) -> M:
    """Parse a message of a procedure that takes no tensors.

    Raises:
        TooLargeError: It is not small.
        InvalidRequestError: The bytes are not such a message.
    """
    if len(payload) > SMALL_BYTES:
        raise TooLargeError(
            f"the request must have at most {SMALL_BYTES} bytes, had {len(payload)}: "
            "only inference takes longer ones"
        )
    return parse(kind, payload)


def parse(kind: type[M], payload: bytes) -> M:
    """Parse a message that is known to be small, or whose expansion has been checked.

    Raises:
        InvalidRequestError: The bytes are not such a message.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise _not_a_message(kind, payload) from error


def check_expansion(message: bytes, kind: type[Message]) -> int:
    """Return at most how much memory reading a message takes, in bytes, and check that it takes little time.

    Args:
        message: The message's bytes.
        kind: Its type.

    Raises:
        InvalidRequestError: It has more than `MOST_FIELDS_IN_ALL` fields, `MOST_NUMBERS` numbers in
            tensors, or `MOST_DIMENSIONS` in a shape.
        DecodeError: The bytes are not a message.
    """
    size = len(message)
    if size <= SMALL_BYTES:
        return size * _BYTES_OF_A_SMALL_MESSAGE
    count = _Count()
    count.add(memoryview(message), cast(Descriptor, kind.DESCRIPTOR))
    return size * _BYTES_OF_A_BYTE + count.fields * _BYTES_OF_A_FIELD + count.numbers * _BYTES_OF_A_NUMBER


class _Count:
    """Counts fields and numbers over nested messages."""

    def __init__(self) -> None:
        self.fields = 0
        self.numbers = 0
        """Those in the contents of tensors."""

    def add(self, message: memoryview, descriptor: Descriptor) -> None:
        """Count what is in a message; types that nest in themselves are not expected.

        Raises:
            InvalidRequestError: It is too much.
            DecodeError: The bytes are not a message.
        """
        fields, dimensions = descriptor.fields_by_number, 0
        for number, content in fields_of(message):
            self.fields += 1
            field = fields.get(number)
            if self.fields > MOST_FIELDS_IN_ALL:
                raise InvalidRequestError(
                    f"the message must have at most {MOST_FIELDS_IN_ALL:,} fields in all, has more, the last "
                    f"of them {_name(descriptor, field)}: send tensors as raw contents, or fewer parameters"
                )
            if field is None or content is None:
                continue
            if field.message_type is not None:
                self.add(content, field.message_type)
            elif not field.is_repeated or field.type in _NEVER_PACKED:
                continue
            elif descriptor.name == _CONTENTS:
                self.numbers += _numbers_in(content, _WIDTHS.get(field.type), MOST_NUMBERS)
                if self.numbers > MOST_NUMBERS:
                    raise InvalidRequestError(
                        f"the message must have at most {MOST_NUMBERS:,} numbers, has more, the last of "
                        f"them in {_name(descriptor, field)}: send tensors as raw contents"
                    )
            else:
                dimensions += _numbers_in(content, _WIDTHS.get(field.type), MOST_DIMENSIONS)
                if dimensions > MOST_DIMENSIONS:
                    raise InvalidRequestError(
                        f"{_name(descriptor, field)} must have at most {MOST_DIMENSIONS} numbers, has more: "
                        "give one for each dimension"
                    )


def _name(descriptor: Descriptor, field: FieldDescriptor | None) -> str:
    return descriptor.name if field is None else f"{descriptor.name}.{field.name}"


def _numbers_in(content: memoryview, width: int | None, most: int) -> int:
    """Return how many packed numbers there are, or more than `most` if there are more."""
    if width is not None:
        return len(content) // width
    if len(content) > most * _LONGEST_NUMBER:
        return most + 1
    return len(content) - len(bytes(content).translate(None, _LAST_BYTES))  # each ends with a byte below 0x80


def _not_a_message(kind: type[Message], payload: bytes) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request must be a {kind.DESCRIPTOR.full_name} message of at most {MOST_FIELDS} fields, "
        f"with text in UTF-8, was {len(payload)} bytes that are not: "
        "send what the protocol's own classes write"
    )
