"""Operations, and the actions that they ask a client to carry out.

An operation does no input or output itself. It is a generator that yields actions, is sent their answers, and
returns its result. `Client` and `AsyncClient` carry the actions out, each over its own kind of channel.
"""

import inspect
import math
import textwrap
import time
import typing
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from polyhead_client.arguments import check_timeout
from polyhead_client.errors import PolyheadError, ServerError
from polyhead_client.request import serialise
from polyhead_proto import RPCS, Rpc

_LONGEST_SECONDS = 10**8
"""Three years. More means no limit, because gRPC's own clock overflows."""


T = TypeVar("T")
M = TypeVar("M", bound=Message)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass  # to freeze it would take time in every call
class Deadline:
    """A deadline on the monotonic clock."""

    timeout: float | None
    """Seconds from start to end; None means no limit."""
    _end: float | None

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        """Return the deadline `timeout` seconds from now.

        Raises:
            InvalidRequest: The timeout is not a positive number.
        """
        if type(timeout) is not float or not timeout > 0:
            check_timeout(timeout)
        if timeout is None or timeout > _LONGEST_SECONDS:
            return cls(None, None)
        return cls(float(timeout), time.monotonic() + float(timeout))

    def remaining(self) -> float | None:
        """Return the seconds that are left; None means no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def left(self) -> float | None:
        """Return the timeout of an operation that must end by then, above 0 even if that has passed."""
        remaining = self.remaining()
        return None if remaining is None else max(remaining, 1e-6)

    def clip(self, seconds: float) -> float:
        """Return `seconds`, or the seconds that are left if those are fewer."""
        remaining = self.remaining()
        return seconds if remaining is None else min(seconds, remaining)


def latest(deadlines: Iterable[Deadline]) -> Deadline:
    """Return the last one of several deadlines."""
    return max(deadlines, key=lambda deadline: math.inf if deadline._end is None else deadline._end)


@dataclass(kw_only=True, eq=False)  # to freeze it would take time in every call
class Call:
    """Call a remote procedure. The answer is its reply."""

    rpc: Rpc
    data: bytes
    deadline: Deadline


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Call a streaming procedure with one request. The answer is the first message of its reply."""

    rpc: Rpc
    data: bytes
    deadline: Deadline


@dataclass(frozen=True, kw_only=True)
class NextMessage:
    """Wait for the next message of a stream. The answer is that message."""

    stream: Stream


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """Wait. The answer is empty."""

    seconds: float


class Join:
    """Wait for a request that several callers share, up to the deadline. The answer is empty."""

    __slots__ = ()

    rpc = RPCS["ModelInfer"]
    deadline: Deadline

    @property
    def patience(self) -> float:
        """The seconds after which to call `overdue`, before the deadline."""
        raise NotImplementedError

    def enter(self, wake: Callable[[], None]) -> None:
        """Begin to wait. `wake` ends it, from any thread."""
        raise NotImplementedError

    def overdue(self) -> None:
        """Hurry, because the wait has lasted long."""
        raise NotImplementedError

    def leave(self) -> PolyheadError | None:
        """End the wait, whatever ended it; return the error that the action fails with."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Run operations concurrently. The answer is empty.

    The first error cancels the others, and is raised.
    """

    operations: Sequence["Operation[int]"]
    max_in_flight: int
    on_result: Callable[[int], None]
    """Called with the result of each operation, one at a time."""


Action: TypeAlias = Call | Join | Stream | NextMessage | Sleep | Gather

Operation: TypeAlias = Generator[Action, bytes, T]
"""Yields actions, is sent their answers or thrown the errors that they failed with, and returns a T."""


def call(name: str, message: Message, reply: type[M], deadline: Deadline) -> Operation[M]:
    """Call a remote procedure, from message to message.

    Raises:
        ServerError: The reply is malformed.
    """
    data = yield Call(rpc=RPCS[name], data=serialise(message), deadline=deadline)
    try:
        return reply.FromString(data)
    except DecodeError as error:
        raise ServerError(f"malformed reply: it is no {reply.DESCRIPTOR.name}") from error


def as_method(operation: Callable[..., Any]) -> Callable[[F], F]:
    """Give a client's method the name, documentation, arguments and return type of an operation.

    The return type is the last type argument of the operation's `Generator`. The keys of an unpacked
    `TypedDict` become arguments, and what it says of them replaces what the operation says of the dictionary.
    """
    signature = inspect.signature(operation)
    returned = typing.get_args(signature.return_annotation)[2]
    parameters, doc = list(signature.parameters.values()), operation.__doc__ or ""
    if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        dictionary = parameters.pop()
        (keys,) = typing.get_args(dictionary.annotation)
        parameters += (
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
            for name, kind in typing.get_type_hints(keys).items()
        )
        _, _, said = inspect.cleandoc(keys.__doc__ or "").partition("Args:\n")
        of_dictionary = f"            **{dictionary.name}: See `{keys.__name__}`."
        doc = doc.replace(of_dictionary, textwrap.indent(said, " " * 8))

    def decorate(function: F) -> F:
        function.__name__, function.__doc__ = operation.__name__, doc
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=returned
        )
        return function

    return decorate
