"""One inference, from the request to its reply. This module runs on the event loop.

Two functions do the work on data, each called at most once for a request: `reading.read` and
`reply.make_reply` (`parts.make_part` once for each part), together with what writes the reply. Where there is
much to do, they are called in a worker thread, so that the event loop never waits for a large message.
"""

import asyncio
import time
import traceback
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from polyhead_proto.names import TIMINGS
from polyhead_server.errors import ExpiredError, RequestError, UnavailableError
from polyhead_server.inference.parts import make_part
from polyhead_server.inference.reading import Job, read
from polyhead_server.inference.reply import SERIALISE, InferReply, make_reply
from polyhead_server.inference.templates import RequestTemplate, RequestTemplates
from polyhead_server.inference.wire import LARGE, SMALL_BYTES, InferRequest, Peeked, peek, split_infer
from polyhead_server.observability.access_log import CURRENT
from polyhead_server.observability.statistics import Drop, Statistics
from polyhead_server.serving.budget import Reservation
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.settings import Settings

_PARSE, _TOKENISE, _QUEUE, _COMPUTE, _ = TIMINGS

# A caller's deadline counts from when it sent the request, so that it cancels a little early by our clock.
_CLOCKS_DIFFER_SECONDS = 0.02

R = TypeVar("R")
T = TypeVar("T")


@dataclass(slots=True)
class RequestAccount:
    """The account of one request: entered when it arrives, left with its reply or its error."""

    unattributed: Statistics
    """Count the request if it ends before its model is known."""
    deadline: float
    """When the caller stops waiting, in the event loop's time."""
    model: Model | None = None
    batch: int = 0
    started_ns: int = field(default_factory=time.perf_counter_ns)
    input_ns: int = 0
    """Until the request was handed to the scheduler."""
    timings: dict[str, int] = field(default_factory=dict)
    """Durations of steps, by the names of the reply's parameters."""

    def __enter__(self) -> "RequestAccount":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        model, total_ns = self.model, time.perf_counter_ns() - self.started_ns
        if error is not None:
            self._count_failure(error, model, total_ns)
        elif model is not None:
            model.statistics.succeeded(self.batch, self.timings | {"request_ns": total_ns})
        if model is None or (record := CURRENT.get()) is None:
            return
        record.model, record.version = model.signature.name, model.signature.version
        if error is None:
            record.batch = self.batch
            of = self.timings
            begun = {
                _PARSE: 0,
                _TOKENISE: of[_PARSE],
                _QUEUE: self.input_ns,
                _COMPUTE: self.input_ns + of[_QUEUE],
                SERIALISE: total_ns - of[SERIALISE],
            }
            record.stages = {
                name.removesuffix("_ns"): (begun[name], of[name]) for name in begun if name in of
            }

    def _count_failure(self, error: BaseException, model: Model | None, total_ns: int) -> None:
        # At its deadline gRPC cancels a request that has not ended by itself; the caller has not left then.
        if (
            isinstance(error, CancelledError | GeneratorExit)
            and time.monotonic() >= self.deadline - _CLOCKS_DIFFER_SECONDS
        ):
            error = ExpiredError()
        statistics = self.unattributed if model is None else model.statistics
        statistics.failed(total_ns=total_ns, error=error)


class Inference:
    """Answer inference requests. Lives on the event loop.

    Args:
        registry: The models.
        settings: The limits.
        workers: Runs the work on large messages.
    """

    def __init__(self, registry: Registry, settings: Settings, workers: Executor) -> None:
        self._registry = registry
        self._workers = workers
        self._max_reply_bytes = settings.max_reply_bytes
        self._templates = RequestTemplates(registry, settings)
        self._reader = partial(read, known=self._templates.layout_at, settings=settings)

    async def answer(
        self,
        request: bytes | InferRequest,
        write: Callable[[InferReply], R],
        *,
        deadline: float,
        held: Reservation,
        send: Callable[[R], Awaitable[None]] | None = None,
    ) -> R:
        """Answer one request: with one reply, or in parts if it asks for them.

        A part is made when the one before has been sent, and what only earlier parts need has been freed by
        then.

        Args:
            request: A `ModelInferRequest`, or a request that came in another form.
            write: Makes of a reply what is sent; may be called in any thread.
            deadline: When the caller stops waiting, in the event loop's time.
            held: Takes what is computed and written.
            send: Sends all parts but the last; None: a request for parts is rejected.

        Returns:
            What `write` has made of the reply, or of its last part.

        Raises:
            RequestError: The request is rejected; the message is for its caller.
            EngineError: The engine failed.
        """
        with RequestAccount(self._registry.unattributed, deadline) as account:
            if isinstance(request, bytes):
                request = split_infer(request)
            seen, changes = None, 0
            if (template := self._templates.find(request)) is None:
                seen = await self._peek(request, held)
                changes, model = self._registry.changes, self._find(seen)
            else:
                model = template.model
            account.model = model
            with model.lease:  # it answers, whatever takes its place meanwhile
                job = await self._read(request, template, model, deadline, streamed=send is not None)
                if seen is not None:
                    if not job.template.holds_data:
                        held.add(-seen.expanded_bytes)
                    if self._registry.changes == changes:
                        self._templates.remember(request, job.template)
                timings = {_PARSE: job.parsed_ns - account.started_ns}
                if job.tokenise_ns is not None:
                    timings[_TOKENISE] = job.tokenise_ns
                layout, parts, arrays = job.layout, job.parts, job.extras
                account.batch = layout.batch
                held.add(layout.computed_bytes + min(layout.size, self._max_reply_bytes), model.statistics)
                account.input_ns = time.perf_counter_ns() - account.started_ns
                timings |= {_QUEUE: 0, _COMPUTE: 0}
                if job.work is not None:
                    done = await model.scheduler.submit(job.work)
                    timings |= {_QUEUE: done.queue_ns, _COMPUTE: done.compute_ns}
                    arrays |= done.outputs
                    del done
            del job  # what only the engine needs
            if parts is None or send is None:
                make = partial(make_reply, layout, arrays, request.request_id)
                message, wrote_ns = await self._write(
                    layout.work_bytes + request.kept_bytes, make, write, timings
                )
                account.timings = timings | {SERIALISE: wrote_ns}
                return message
            wrote_ns = 0
            for part in parts:
                message, wrote_ns = await self._write(
                    parts.work_bytes(part), partial(make_part, parts, part, arrays), write, timings, wrote_ns
                )
                if part.number < parts.count - 1:
                    await send(message)
                    del message  # before the next is made
            account.timings = timings | {SERIALISE: wrote_ns}
            return message

    def on_retired(self, _model: Model) -> None:
        """Drop all request templates: some refer to the model, which is out of service."""
        self._templates.forget()

    async def _peek(self, request: InferRequest, held: Reservation) -> Peeked:
        """Look at a header that is new, and reserve what reading it takes."""
        if len(request.header) > SMALL_BYTES:
            seen = await self._in_worker(partial(peek, request))
        else:
            seen = peek(request)
        held.add(seen.expanded_bytes, self._registry.unattributed)
        return seen

    def _find(self, seen: Peeked) -> Model:
        """Return the model that a request names; count a rejection because it is not ready."""
        try:
            return self._registry.find(seen.model, seen.version)
        except UnavailableError as error:
            if error.retry_after_ms is not None:
                self._registry.unattributed.on_drop(Drop.LOADING)
            raise

    async def _read(
        self,
        request: InferRequest,
        template: RequestTemplate | None,
        model: Model,
        deadline: float,
        *,
        streamed: bool,
    ) -> Job:
        make = partial(self._reader, request, template, model, deadline, streamed)
        try:
            # A header may hold much to check, so one that is new never is on the event loop.
            if template is None or template.work(request) >= LARGE:
                return await self._in_worker(make)
            return make()
        except RequestError as error:
            traceback.clear_frames(error.__traceback__)  # which hold what was read, until it is answered
            raise

    async def _write(
        self,
        work_bytes: int,
        make: Callable[[Mapping[str, int], int], InferReply],
        write: Callable[[InferReply], R],
        timings: Mapping[str, int],
        before_ns: int = 0,
    ) -> tuple[R, int]:
        """Make and write a reply, or a part of it; return it with the time that took, and parts before."""
        began_ns = time.perf_counter_ns() - before_ns
        if work_bytes < LARGE:
            message = write(make(timings, began_ns))
        else:
            message = await self._in_worker(lambda: write(make(timings, began_ns)))
        return message, time.perf_counter_ns() - began_ns

    async def _in_worker(self, function: Callable[[], T]) -> T:
        """Call a function that has much to do in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function)
