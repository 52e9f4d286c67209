"""A call with one request and one reply, as `AcceptQueue` accepts it."""

from functools import partial

from polyhead_server.errors import InvalidRequestError, RequestError
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.cygrpc import cygrpc
from polyhead_server.transport.reading import EMPTY_CALL, OVER_SECONDS


class UnaryCall(AcceptedCall):
    """A call with one request, which is read before its handler starts. This returns the reply to it.

    | the call | event                                       | thread     | then
    | -------- | ------------------------------------------- | ---------- | ---------------------------------
    | begins   | a guard rejects it                          | event loop | ended, with the guard's status
    | begins   | no guard does                               | polling    | reads
    | reads    | the request has come                        | event loop | runs
    | reads    | the request is lost, late or not acceptable | event loop | ended, with the error's status
    | reads    | gRPC refuses the request                    | event loop | ended by gRPC, and counted
    | reads    | there is none, and no word of a caller gone | event loop | ended, with an error's status
    | runs     | the handler returns or fails                | event loop | ended, with its reply or status
    | any      | its caller leaves, or its deadline passes   | event loop | ended, and its handler cancelled
    """

    _request: bytes | None = None

    # ---- In the polling thread ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._reader.begin(self)
        self._receive()

    def _take(self, request: bytes | RequestError | None) -> None:
        self._reader.finish(self)
        if isinstance(request, RequestError):
            self._queue.hand_over(self, partial(self.give_up, request), waits=True)
        else:
            self._request = request
            self._queue.hand_over(self, self._start, waits=True)

    # ---- On the event loop -------------------------------------------------------------------------

    def give_up(self, reason: Exception) -> None:
        """Answer a call whose request cannot be read, unless it has come or its caller has left."""
        self._reader.finish(self)
        if self._ended or self._left or self._request is not None:
            return
        try:
            self._count(reason)
        finally:
            self._fail(reason)

    def _refuse(self) -> None:
        super()._refuse()
        self._ended = True

    def _start(self) -> None:
        if self._ended or self._left:
            self._request = None
        elif self._request is None:
            empty = InvalidRequestError(EMPTY_CALL)
            self._queue.loop.call_later(OVER_SECONDS, self.give_up, empty)
        else:
            super()._start()

    async def _answer(self) -> None:
        request, self._request = self._request, None
        assert request is not None  # noqa: S101 - see `_start`
        answer = self._handler(request, self)
        del request  # the handler holds it as long as it needs it
        reply: bytes = await answer
        self._send(
            *self._initial_metadata(),
            cygrpc.SendMessageOperation(reply, 0),
            cygrpc.SendStatusFromServerOperation((), cygrpc.StatusCode.ok, b"", 0),
        )
