"""Request messages as bytes: taken apart without copying what is large, or parsing what is known.

What is left without `id` and raw contents describes the tensors, and is the same in the next request of its
kind: `forms` parses it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_proto import messages as pb
from polyhead_proto.wire import MOST_FIELDS, split
from polyhead_server.errors import InvalidRequestError

LARGE = 512 * 1024
"""Bytes from which copying them takes longer than a hop to another thread and back, about 0.1 ms."""

M = TypeVar("M", bound=Message)

_ID = pb.ModelInferRequest.ID_FIELD_NUMBER
_RAW = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_LONGEST_ID = 1024


@dataclass(kw_only=True, slots=True)
class InferRequest:
    """A `ModelInferRequest`, taken apart but not parsed. Made once a request, as `Work` is."""

    head: bytes
    """All but `id` and `raw_input_contents`: equal for requests that differ in their data only."""
    request_id: str
    raw: Sequence[memoryview]
    """The raw contents, in order, where they lie in the request."""

    def message(self) -> pb.ModelInferRequest:
        """Parses the head.

        Raises:
            InvalidRequestError: The bytes are no such message.
        """
        return parse(pb.ModelInferRequest, self.head)


def parse(kind: type[M], payload: bytes) -> M:
    """Parses a whole message.

    Raises:
        InvalidRequestError: The bytes are no such message.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise _no_message(kind, payload) from error


def split_infer(payload: bytes) -> InferRequest:
    """Takes an inference request apart.

    Raises:
        InvalidRequestError: The bytes are no such message, or have more fields than any request needs, or a
            longer id. Each costs time and memory here.
    """
    try:
        head, (ids, raw) = split(payload, _ID, _RAW)
        request_id = ""
        for content in ids:  # the last counts
            if len(content) > _LONGEST_ID:
                raise InvalidRequestError(f"id must have at most {_LONGEST_ID} bytes, had {len(content)}")
            request_id = str(content, "utf-8")
    except (DecodeError, UnicodeDecodeError) as error:
        raise _no_message(pb.ModelInferRequest, payload) from error
    return InferRequest(head=head, request_id=request_id, raw=raw)


def _no_message(kind: type[Message], payload: bytes) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request must be a {kind.DESCRIPTOR.full_name} message of at most {MOST_FIELDS} fields, "
        f"with text in UTF-8, was {len(payload)} bytes that are not: "
        "send what the protocol's own classes write"
    )
