"""The connections of a process, over which every request is sent.

Answers are timed as they arrive, as bytes. The polyhead client builds the requests (`requests.py`) but does
not send them: it would decode the reply, which costs time that is not the server's, retry where it should
report a rejection, and hold a thread for each call.

gevent runs many users in one thread: while one waits, another runs. gRPC waits in C, where gevent cannot see
it, so each *blocking* call holds one of the ten threads of gevent's pool until it is answered. Beside ten
slow calls, the answer to an eleventh would be noticed late, and the delay booked as the server's. Hence calls
are futures here, and one thread waits for all answers of a channel. The pool is enlarged all the same:
replies in parts are streams, each of which holds a thread, and a locustfile may do other things.

A server allows 32 calls at once on a connection. `polyhead_client.channel` opens further ones while more are
in flight, so that none waits in the generator for another.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import gevent
import grpc.experimental.gevent
from gevent import monkey

from polyhead_client.calls import Call, Deadline, Stream
from polyhead_client.channel import call_metadata, open_channel, open_stream
from polyhead_client.errors import PolyheadError
from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_client.status import translated
from polyhead_load.errors import LoadError
from polyhead_load.records import OK
from polyhead_load.replies import NO_HEADER, ReplyCheck, ReplyHeader, ReplyTensor, join_parts, read_header

_UNKNOWN: int = grpc.StatusCode.UNKNOWN.value[0]

_OPTIONS = (
    # A rejection is a result here: a retry would hide it.
    ("grpc.enable_retries", 0),
)

_THREADS = 1100
"""Limit of the pool's threads, which start when there is work for them. Each reply in parts holds one; the
default of --max-in-flight is 1,000."""


@cache
def cooperate() -> None:
    """Make gRPC cooperate with gevent. Call it before a process opens its first channel.

    Raises:
        LoadError: gevent has not patched the standard library; `import locust` does that.
    """
    if not monkey.is_module_patched("threading"):
        raise LoadError(
            "gevent's monkey.patch_all() must be called, or locust imported, before anything else"
        )
    pool = gevent.get_hub().threadpool
    pool.maxsize = max(pool.maxsize, _THREADS)
    grpc.experimental.gevent.init_gevent()


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request, ready to be sent."""

    name: str
    """What it asks for, in one line."""
    wanted: Call | Stream
    """As the client has built it."""
    number: int
    """Its number within its pool."""
    check: ReplyCheck
    """Shared by all requests of its pool."""

    @property
    def bytes(self) -> int:
        """Return its size."""
        return len(self.wanted.data)

    def fault(self, tensors: Sequence[ReplyTensor]) -> str | None:
        """Return how a reply differs from those before it, or None."""
        return self.check.fault(self.number, tensors)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a request ended."""

    done: float
    """When it ended, by `time.perf_counter`."""
    code: int
    """gRPC's status, as a number."""
    details: str = ""
    """The server's message with an error."""
    bytes: int = 0
    """The size of the reply."""
    header: ReplyHeader = NO_HEADER


OnAnswer: TypeAlias = Callable[[Answer], None]


class LoadConnection:
    """Connections to a server at `host:port` or `unix:/path`, where each request may take `timeout` seconds.

    Raises:
        InvalidRequest: `access` contradicts itself.
        OSError: One of its files cannot be read.
    """

    def __init__(self, address: str, *, timeout: float, access: Access = OPEN_ACCESS) -> None:
        cooperate()
        self.address = address
        self._timeout = timeout
        self._metadata = call_metadata(access.token())
        self._channel = open_channel(address, access.credentials(), _OPTIONS)
        self._procedure = cache(self._channel.unary_unary)

    def start(self, request: Request, on_answer: OnAnswer) -> None:
        """Send a request and return; `on_answer` is called when it has ended, with or without success."""
        wanted = request.wanted
        if isinstance(wanted, Stream):
            gevent.spawn(self._stream, wanted, on_answer)
            return
        future = self._procedure(wanted.rpc.path).future(
            wanted.data, timeout=self._timeout, metadata=self._metadata
        )
        future.add_done_callback(partial(_on_done, wanted, on_answer))

    def fetch(self, wanted: Call | Stream) -> list[bytes]:
        """Return the messages of a reply that is not measured; other greenlets run meanwhile.

        Raises:
            PolyheadError: The call failed.
        """
        if isinstance(wanted, Stream):
            return list(self._parts(wanted))
        timeout = self._timeout
        with translated(target=self.address, rpc=wanted.rpc.name, timeout=timeout, request_id=""):
            return [self._procedure(wanted.rpc.path)(wanted.data, timeout=timeout, metadata=self._metadata)]

    def close(self) -> None:
        """Close the connections, and cancel what is in flight."""
        self._channel.close()

    def _parts(self, wanted: Stream) -> Iterator[bytes]:
        again = Stream(rpc=wanted.rpc, data=wanted.data, deadline=Deadline.after(self._timeout))
        stream = open_stream(self._channel, again, target=self.address, metadata=self._metadata)
        with stream.translated():
            yield from stream.call

    def _stream(self, wanted: Stream, on_answer: OnAnswer) -> None:
        """Receive a reply in parts, and discard them."""
        size, header = 0, NO_HEADER
        tensors: list[ReplyTensor] = []
        try:
            for message in self._parts(wanted):
                size += len(message)
                header = read_header(message, wanted.rpc.response)
                tensors += header.tensors
        except PolyheadError as error:
            code = _UNKNOWN if error.code is None else error.code.value[0]
            done = time.perf_counter()
            on_answer(Answer(done=done, code=code, details=error.details or "", bytes=size))
            return
        done = time.perf_counter()
        on_answer(Answer(done=done, code=OK, bytes=size, header=header._replace(tensors=join_parts(tensors))))


def _on_done(wanted: Call, on_answer: OnAnswer, future: Any) -> None:
    done = time.perf_counter()
    code = future.code()
    if code is not grpc.StatusCode.OK:
        on_answer(Answer(done=done, code=code.value[0], details=future.details() or ""))
        return
    reply = future.result()
    on_answer(Answer(done=done, code=OK, bytes=len(reply), header=read_header(reply, wanted.rpc.response)))
