"""`ModelStreamInfer`: several requests of a stream are worked on at once, and answered in their order.

A request that fails does not end the stream: its reply holds the error. At most `MAX_IN_PROGRESS` requests
have been read and not answered, so that a slow reader holds up its own stream only.
"""

import asyncio
from contextlib import suppress

from polyhead_proto import messages as pb
from polyhead_proto.names import FINAL, WANTS_STATUS
from polyhead_server.errors import DrainingError, ErrorReply, InvalidRequestError, StalledError
from polyhead_server.grpc.call import Call, deadline_of, end, write
from polyhead_server.inference.wire import split_infer
from polyhead_server.observability.access_log import RequestLog, logged_reply, request_id
from polyhead_server.runtime import Runtime

MAX_IN_PROGRESS = 32
"""Requests of one stream that are worked on at once."""

# Late work is rejected wherever it waits. Only a reader that stands still has to be cut off, and that later.
_GRACE_SECONDS = 1.0


class StreamEndedError(Exception):
    """The stream must end with the status that it has as its argument."""


class InferStream:
    """Answer the requests of one call.

    Each request has a task, and a turn, which comes when the reply before it has been written. A task that
    fails ends the stream: it does so in its turn, and then the others are cancelled.

    Args:
        runtime: Answers a request.
        log: Records every inference.
        call: The call.
    """

    def __init__(self, runtime: Runtime, log: RequestLog, call: Call) -> None:
        self._runtime = runtime
        self._log = log
        self._call = call
        self._deadline = deadline_of(call)
        self._room = asyncio.Semaphore(MAX_IN_PROGRESS)
        # An error is to end the stream with a status, as Triton's clients may ask.
        self._wants_status = WANTS_STATUS in (call.invocation_metadata() or ())

    async def run(self) -> None:
        """Answer requests until the caller sends no more, or the server drains.

        Raises:
            grpc.aio.AbortError: The stream has ended with a status.
        """
        await self._call.send_initial_metadata(())  # so that a status can follow a reply that is not read
        if (status := await self._answer_all()) is not None:
            await end(self._call, status)

    async def _answer_all(self) -> ErrorReply | None:
        """Answer requests, and return the status that the stream is to end with, if it is not OK.

        The errors are gone then: they hold the arrays of replies, and a status waits behind what is not read.
        """
        status = None
        draining = asyncio.ensure_future(self._runtime.lifecycle.draining.wait())
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(tasks))
                draining.add_done_callback(lambda _: reading.cancel())
                reading.add_done_callback(lambda _: draining.cancel())
            if reading.cancelled():  # and every request accepted before is answered
                raise DrainingError
        except* Exception as group:
            (error, *_) = group.exceptions
            status = error.args[0] if isinstance(error, StreamEndedError) else self._status(error)
        return status

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to answer one request after the other."""
        turn = asyncio.Event()
        turn.set()
        while True:
            await self._room.acquire()
            try:
                payload = await self._call.read()
            except MemoryError as error:
                self._runtime.registry.unattributed.failed(total_ns=0, error=error)
                raise
            if not isinstance(payload, bytes):  # there are no more
                return
            following = asyncio.Event()
            tasks.create_task(self._answer(payload, turn, following))
            del payload  # it belongs to the task: the next request may be long in coming
            turn = following

    async def _answer(self, payload: bytes, turn: asyncio.Event, following: asyncio.Event) -> None:
        """Answer one request in its turn; then the following has its own."""
        deadline = self._runtime.deadline(self._deadline)

        async def send(reply: bytes) -> None:
            await turn.wait()
            try:
                async with asyncio.timeout_at(deadline + _GRACE_SECONDS):
                    await write(self._call, reply)
            except TimeoutError as error:
                raise StalledError(len(reply)) from error

        with self._log.request(self._call):
            try:
                await self._runtime.stream(
                    payload,
                    send,
                    deadline=deadline,
                    until_sent=self._call.add_done_callback,  # type: ignore[arg-type]
                )
            except Exception as error:
                status = self._status(error)
                if self._wants_status or isinstance(error, DrainingError | StalledError):
                    await turn.wait()
                    raise StreamEndedError(status) from error
                await send(failed_reply(status, payload))
        following.set()
        self._room.release()

    def _status(self, error: Exception) -> ErrorReply:
        """Return the status of an error. Log those that are the server's fault."""
        return logged_reply(error, request_id(self._call))


def failed_reply(error: ErrorReply, payload: bytes) -> bytes:
    """Write the reply that holds a request's error, with the request's id."""
    request_id = ""
    with suppress(InvalidRequestError):
        request_id = split_infer(payload).request_id
    return pb.ModelStreamInferResponse(
        error_message=f"{error.code.name}: {error.message}",
        infer_response=pb.ModelInferResponse(
            id=request_id, parameters={FINAL: pb.InferParameter(bool_param=True)}
        ),
    ).SerializeToString()
