"""`ModelStreamInfer`: several requests of a stream are worked on at once, and answered in their order.

A request that fails does not end the stream: its reply holds the error. At most `MAX_IN_PROGRESS` requests
have been read and not answered, so that a slow reader holds up its own stream only.
"""

import asyncio
from contextlib import suppress

from polyhead_proto import messages as pb
from polyhead_proto.names import FINAL, WANTS_STATUS
from polyhead_server.errors import DrainingError, ErrorReply, InvalidRequestError
from polyhead_server.inference.wire import split_infer
from polyhead_server.observability.request_log import RequestLog, request_id
from polyhead_server.runtime import Runtime
from polyhead_server.transport.call import logged_reply
from polyhead_server.transport.stream_call import StreamCall

# Late work is rejected wherever it waits. Only a reader that stands still has to be cut off, and that later.
_GRACE_SECONDS = 1.0


class InferStream:
    """Answer the requests of one call.

    Each request has a task, and a turn, which comes when the reply before it has been written. A task that
    fails ends the stream: it does so in its turn, and then the others are cancelled.

    Args:
        runtime: Answers a request.
        log: Records every inference.
        call: The call.
    """

    def __init__(self, runtime: Runtime, log: RequestLog, call: StreamCall) -> None:
        self._runtime = runtime
        self._log = log
        self._call = call
        # An error is to end the stream with a status, as Triton's clients may ask.
        self._wants_status = WANTS_STATUS in (call.invocation_metadata() or ())

    async def run(self) -> None:
        """Answer requests until the caller sends no more.

        Raises:
            DrainingError: The server drains. Every request accepted before is answered.
            ExceptionGroup: An error is to end the stream.
        """
        draining = asyncio.ensure_future(self._runtime.lifecycle.draining.wait())
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(tasks))
            draining.add_done_callback(lambda _: reading.cancel())
            reading.add_done_callback(lambda _: draining.cancel())
        if reading.cancelled():
            raise DrainingError

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to answer one request after the other."""
        turn = asyncio.Event()
        turn.set()
        async for payload in self._call:
            following = asyncio.Event()
            tasks.create_task(self._answer(payload, turn, following))
            del payload  # it belongs to the task: the next request may be long in coming
            turn = following

    async def _answer(self, payload: bytes, turn: asyncio.Event, following: asyncio.Event) -> None:
        """Answer one request in its turn; then the following has its own."""
        deadline = self._runtime.deadline(self._call.deadline)

        async def write(reply: bytes) -> None:
            await turn.wait()
            await self._call.write(reply, until=deadline + _GRACE_SECONDS)

        with self._log.request(self._call):
            try:
                await self._runtime.stream(payload, write, deadline=deadline)
            except Exception as error:
                if isinstance(error, DrainingError) or self._wants_status:
                    await turn.wait()
                    self._call.abort(error)
                reply = logged_reply(error, request_id(self._call))
                await write(failed_reply(reply, payload))
        following.set()
        self._call.answered()


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
