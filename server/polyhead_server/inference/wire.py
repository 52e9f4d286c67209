"""Split request messages without copying their tensors.

What is left without `id` and raw contents, the header, describes the tensors. It is the same in the next
request of its kind, and is parsed once for all of them: see `templates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_proto.wire import MOST_FIELDS, fields_of, split
from polyhead_server.errors import InvalidRequestError, TooLargeError
from polyhead_server.inference.expansion import SMALL_BYTES, ExpansionError, check_expansion

LARGE = 512 * 1024
"""Bytes from which copying them takes longer than a hop to another thread and back, about 0.1 ms."""

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
    raw: Sequence[bytes | memoryview]
    """The raw contents, in order, as views of what the request came in where they lie there."""
    size: int
    """The bytes that it keeps in memory: at least those of its raw contents."""


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
    return InferRequest(header=header, request_id=request_id, raw=raw, size=len(payload))


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
    return InferRequest(header=header, request_id=request_id, raw=raw, size=max(len(header), kept) + packed)


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
    except ExpansionError as error:
        raise InvalidRequestError(str(error)) from error
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


def _not_a_message(kind: type[Message], payload: bytes) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request must be a {kind.DESCRIPTOR.full_name} message of at most {MOST_FIELDS} fields, "
        f"with text in UTF-8, was {len(payload)} bytes that are not: "
        "send what the protocol's own classes write"
    )
