"""One inference, from the request's bytes to the reply's. This module runs on the event loop.

Two functions do the work on bytes, each called at most once for a request: `reading.read` and
`reply.write_reply` (`PartWriter.write` once for each part). Where there is much to do, they are called in a
worker thread, so that the event loop never waits for a large message.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeAlias, TypeVar

from polyhead_proto.expansion import SMALL_BYTES
from polyhead_server.errors import RequestError
from polyhead_server.inference.account import RequestAccount
from polyhead_server.inference.parts import PartWriter
from polyhead_server.inference.reading import Job, read
from polyhead_server.inference.reply import InferReply, write_reply
from polyhead_server.inference.templates import RequestTemplates
from polyhead_server.inference.wire import LARGE, expansion_of, split_infer
from polyhead_server.serving.budget import Reservation
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.settings import Settings

Send: TypeAlias = Callable[[bytes], Awaitable[None]]
R = TypeVar("R")


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
        self._reader = partial(read, registry=registry, settings=settings)
        self._templates = RequestTemplates(registry)

    async def answer(self, payload: bytes, deadline: float, held: Reservation) -> bytes:
        """Answer one request.

        Args:
            payload: A `ModelInferRequest`.
            deadline: When the caller stops waiting, in the event loop's time.
            held: Takes what is computed and written.

        Returns:
            A `ModelInferResponse`.

        Raises:
            RequestError: The request is rejected; the message is for its caller.
            EngineError: The engine failed.
        """
        with RequestAccount(self._registry.unattributed, deadline) as account:
            reply = await self._compute(payload, account, held, streamed=False)
            return await self._write(reply.plan.effort, account, write_reply, reply)

    async def stream(self, payload: bytes, send: Send, deadline: float, held: Reservation) -> None:
        """Answer one request of a stream, with one reply or in parts, as the request asks.

        A part is made when the one before has been sent, and what only earlier parts need has been freed by
        then.

        Args:
            payload: A `ModelInferRequest`.
            send: Sends a `ModelStreamInferResponse`.
            deadline: When the caller stops waiting, in the event loop's time.
            held: Takes what is computed and written.

        Raises:
            RequestError: The request is rejected; the message is for its caller.
            EngineError: The engine failed.
        """
        with RequestAccount(self._registry.unattributed, deadline) as account:
            reply = await self._compute(payload, account, held, streamed=True)
            if reply.parts is None:
                message = await self._write(reply.plan.effort, account, write_reply, reply)
                del reply  # its arrays are not held while the message is sent
            else:
                writer = PartWriter(reply, reply.parts)
                for part in reply.parts:
                    message = await self._write(writer.effort(part), account, writer.write, part)
                    if part.number < reply.parts.count - 1:
                        await send(message)
                        del message  # before the next is made
        await send(message)

    def forget(self, _model: Model) -> None:
        """Free what refers to a model that is out of service."""
        self._templates.forget()

    async def _compute(
        self, payload: bytes, account: RequestAccount, held: Reservation, *, streamed: bool
    ) -> InferReply:
        """Read a request and run its model. What only the engine needs is freed on return."""
        job = await self._read(payload, account, held, streamed=streamed)
        model, reply = job.template.model, job.reply
        with model.lease:  # no await since the model was seen to be in service
            held.add(job.room, model.statistics)
            account.input_ns = account.elapsed_ns
            if job.work is not None:
                done = await model.scheduler.submit(job.work)
                reply.arrays.update(done.outputs)
                account.queue_ns, account.compute_ns = done.queue_ns, done.compute_ns
        return reply

    async def _read(
        self, payload: bytes, account: RequestAccount, held: Reservation, *, streamed: bool
    ) -> Job:
        """Read a request, for a model that is in service when this returns."""
        request, room = split_infer(payload), 0
        while True:
            changes = self._registry.changes
            account.model = None
            template = self._templates.find(request)
            if template is None and not room:
                room = await self._off_loop(
                    LARGE if len(request.head) > SMALL_BYTES else 0, expansion_of, request
                )
                held.add(room, account)
            # A head may hold much to check, so one that is new never is on the event loop.
            effort = LARGE if template is None else max(len(payload), template.effort)
            try:
                job = await self._off_loop(effort, self._reader, request, template, account, streamed)
            except RequestError as error:
                traceback.clear_frames(error.__traceback__)  # which hold what was read, until it is answered
                raise
            if self._registry.changes == changes:
                break  # otherwise a thread may have read it for a model that has been replaced meanwhile
        if not job.template.holds_data:
            held.add(-room)
        if template is None:
            self._templates.remember(request, job.template)
        return job

    async def _write(
        self, effort: int, account: RequestAccount, function: Callable[..., bytes], *arguments: object
    ) -> bytes:
        """Write a message, and time that."""
        started_ns = time.perf_counter_ns()
        message = await self._off_loop(effort, function, *arguments, account, started_ns)
        account.write_ns += time.perf_counter_ns() - started_ns
        return message

    async def _off_loop(self, effort: int, function: Callable[..., R], *arguments: object) -> R:
        """Call a function in a worker thread where it has much to do, and here otherwise."""
        if effort < LARGE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)
