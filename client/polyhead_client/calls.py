"""What an operation asks of whoever drives it."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from polyhead_client.deadline import Deadline
from polyhead_client.messages import parse
from polyhead_client.request import serialise
from polyhead_proto import RPCS, Rpc

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A remote procedure to call; its reply's bytes are the answer."""

    rpc: Rpc
    data: bytes
    deadline: Deadline


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A streaming procedure to call with one request; the bytes of its first message are the answer."""

    rpc: Rpc
    data: bytes
    deadline: Deadline


@dataclass(frozen=True, kw_only=True)
class More:
    """The bytes of the next message of the stream that was called last."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A time to wait; the answer is empty."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Together:
    """Operations to carry out side by side; the answer is empty.

    The first that fails ends all of them, and is what the whole fails with.
    """

    operations: Sequence["Operation[int]"]
    at_once: int
    """At most so many are under way."""
    ended: Callable[[int], None]
    """Called with what an operation returned, one at a time, where the whole was asked for."""


Wanted: TypeAlias = Call | Stream | More | Pause | Together

Operation: TypeAlias = Generator[Wanted, bytes, T]
"""Yields what is to be done, is sent the answers, and returns a T."""


def call(name: str, message: Message, reply: type[M], deadline: Deadline) -> Operation[M]:
    """One call, from message to message.

    Raises:
        ServerError: the reply cannot be read.
    """
    answer = yield Call(rpc=RPCS[name], data=serialise(message), deadline=deadline)
    return parse(reply, answer)
