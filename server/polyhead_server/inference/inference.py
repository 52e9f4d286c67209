"""One inference, from the request's bytes to the reply's."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyhead_proto.names import LENGTHS, TOKENS
from polyhead_server.errors import InvalidRequestError, UnavailableError
from polyhead_server.inference.accounts import Ran, failures, succeeded
from polyhead_server.inference.decoding import read_inputs
from polyhead_server.inference.outputs import Planned
from polyhead_server.inference.parts import Parts, PartWriter, own, plan_parts, write_part_head
from polyhead_server.inference.preparation import Prepared, longest, prepare
from polyhead_server.inference.reply import (
    Piece,
    align,
    check_size,
    frame_stream,
    frame_tensor,
    write_id,
    write_timings,
)
from polyhead_server.inference.selection import convert, select
from polyhead_server.inference.templates import Form, Forms, Plan, effort, plan_reply
from polyhead_server.inference.wire import LARGE, InferRequest, split_infer
from polyhead_server.observability.counter_layout import LOADING
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling import Work
from polyhead_server.serving.budget import Reservation
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.settings import Settings

R = TypeVar("R")

_PARSING = 32
"""Bytes that are copied in the time in which one byte of a message is parsed and checked."""


class Inference:
    """Answers inference requests.

    Args:
        registry: The models.
        settings: The limits.
        workers: Where work on large messages goes, so that the event loop never waits for it.
    """

    def __init__(self, registry: Registry, settings: Settings, workers: Executor) -> None:
        self._registry = registry
        self._settings = settings
        self._workers = workers
        self._forms = Forms(registry, settings)

    async def answer(self, payload: bytes, deadline: float, held: Reservation) -> bytes:
        """Answers one request.

        Args:
            payload: A `ModelInferRequest`.
            deadline: When the caller stops waiting, or has to, in the event loop's time.
            held: Takes what is computed and written.

        Returns:
            A `ModelInferResponse`.

        Raises:
            RequestError: The caller is told why.
            EngineError: The engine failed.
        """
        started_ns = time.perf_counter_ns()
        with self._misses(started_ns):
            request = split_infer(payload)
        form = self._forms.recall(request) or await self._new_form(request, started_ns, deadline)
        with failures(form.model, started_ns, deadline):
            if form.parameters.parts:
                raise InvalidRequestError(
                    "parameter parts of the request must be left out or false: "
                    "a reply in parts is for ModelStreamInfer"
                )
            run = self._run(
                form,
                request,
                self._check_whole,
                size=len(payload),
                started_ns=started_ns,
                deadline=deadline,
                held=held,
            )
            return await self._write_whole(form, request, (await run)[0], _as_it_is)

    async def stream(self, payload: bytes, deadline: float, held: Reservation) -> AsyncGenerator[bytes]:
        """Answers one request of a stream: with one reply, or in parts where it asks for them.

        The next part is worked out when it is asked for, and memory of what has been sent is let go.

        Args:
            payload: A `ModelInferRequest`.
            deadline: When the caller stops waiting, or has to, in the event loop's time.
            held: Takes what is computed and written.

        Yields:
            One `ModelStreamInferResponse` after the other.

        Raises:
            RequestError: The caller is told why.
            EngineError: The engine failed.
        """
        started_ns = time.perf_counter_ns()
        with self._misses(started_ns):
            request = split_infer(payload)
        form = self._forms.recall(request) or await self._new_form(request, started_ns, deadline)
        size = len(payload)
        del payload
        check = self._plan_parts if form.parameters.parts else self._check_whole
        with failures(form.model, started_ns, deadline):
            ran, parts = await self._run(
                form, request, check, size=size, started_ns=started_ns, deadline=deadline, held=held
            )
            if parts is None:
                whole = await self._write_whole(form, request, ran, frame_stream)
        if parts is None:
            yield whole
            return
        model, head_id = form.model, write_id(request.request_id)
        del request
        output_ns = 0
        with failures(model, started_ns, deadline):
            content = await self._place(ran.plan.computed_bytes, own, ran.content)
            ran.content.clear()
            writer = PartWriter(content)
            del content
            for index, part in enumerate(parts):
                part_started_ns = time.perf_counter_ns()
                head = write_part_head(part, model.signature, index=index, count=parts.count)
                pieces: list[Piece] = [head, head_id]
                cost = effort(part.output, min(part.output.bytes, parts.room))
                pieces += await self._place(cost, writer.write, part)
                if last := index == parts.count - 1:
                    written_ns = output_ns + time.perf_counter_ns() - part_started_ns
                    pieces.append(write_timings(ran.timings(written_ns)))
                message = await self._join(frame_stream(align(pieces)))
                del pieces
                output_ns += time.perf_counter_ns() - part_started_ns
                if not last:
                    yield message
                    del message  # before the next is made
        succeeded(model, ran, output_ns)
        yield message

    @contextmanager
    def _misses(self, started_ns: int) -> Iterator[None]:
        """Counts a request that ends before its model is known."""
        try:
            yield
        except BaseException as error:
            statistics = self._registry.unattributed
            statistics.failed(total_ns=time.perf_counter_ns() - started_ns, error=error)
            if isinstance(error, UnavailableError) and error.retry_after_ms is not None:
                statistics.on_drop(LOADING)
            raise

    async def _new_form(self, request: InferRequest, started_ns: int, deadline: float) -> Form:
        """Checks a form that is not known yet, and remembers it."""
        cost = len(request.head) * _PARSING
        with self._misses(started_ns):
            message = await self._place(cost, request.message)
        while True:
            with self._misses(started_ns):
                model = self._registry.find(message.model_name, message.model_version)
            with failures(model, started_ns, deadline):
                form = await self._place(cost, self._forms.check, request, message, model)
            # Another may have taken its place while a large head was checked.
            with self._misses(started_ns):
                serving = self._registry.find(message.model_name, message.model_version)
            if model is serving:
                self._forms.remember(request, form)
                return form

    async def _write_whole(
        self, form: Form, request: InferRequest, ran: Ran, frame: Callable[[Sequence[Piece]], Sequence[Piece]]
    ) -> bytes:
        started_ns = time.perf_counter_ns()
        pieces = await self._place(ran.plan.effort, _write_outputs, ran.plan.outputs, ran.content)
        timings = write_timings(ran.timings(time.perf_counter_ns() - started_ns))
        whole = align([ran.plan.head, write_id(request.request_id), timings, *pieces])
        reply = await self._join(frame(whole))
        succeeded(form.model, ran, time.perf_counter_ns() - started_ns)
        return reply

    def _check_whole(self, plan: Plan, request: InferRequest, _signature: Signature) -> Parts | None:
        needed = plan.size + len(write_id(request.request_id))
        check_size(needed, plan.outputs, self._settings.max_reply_bytes)
        return None

    def _plan_parts(self, plan: Plan, request: InferRequest, signature: Signature) -> Parts | None:
        return plan_parts(
            plan.outputs,
            signature=signature,
            request_id=request.request_id,
            part_limit=self._settings.max_reply_bytes,
            total_limit=self._settings.max_stream_reply_bytes,
        )

    async def _run(
        self,
        form: Form,
        request: InferRequest,
        check: Callable[[Plan, InferRequest, Signature], Parts | None],
        *,
        size: int,
        started_ns: int,
        deadline: float,
        held: Reservation,
    ) -> tuple[Ran, Parts | None]:
        """Does everything but writing the reply; `check` sees its sizes before anything is computed."""
        with form.model.lease:
            signature = form.model.signature
            decoded = await self._place(
                size, read_inputs, form.inputs, request.raw, signature, self._settings
            )
            parse_ns = time.perf_counter_ns() - started_ns
            # Tokenising costs more than a hop to another thread, whatever the length of the text.
            large = LARGE if form.plan is None else max(size, form.filled)
            prepared = await self._place(large, prepare, form, decoded, self._settings)
            plan = form.plan or _plan_now(form, prepared)
            checked = check(plan, request, signature)
            room = plan.computed_bytes + min(plan.size, self._settings.max_reply_bytes)
            held.add(room, form.model.statistics)
            input_ns = time.perf_counter_ns() - started_ns

            arrays, queue_ns, compute_ns = await self._compute(form, prepared, plan.computed, deadline)
            ran = Ran(
                plan=plan,
                batch=prepared.sizes["B"],
                tokenise_ns=prepared.tokenise_ns,
                content={**arrays, **prepared.extras},
                started_ns=started_ns,
                parse_ns=parse_ns,
                input_ns=input_ns,
                queue_ns=queue_ns,
                compute_ns=compute_ns,
            )
            return ran, checked

    def forget(self, model: Model) -> None:
        """Lets go of a model that is out of service."""
        self._forms.forget(model)

    async def _join(self, pieces: Sequence[Piece]) -> bytes:
        """Puts pieces together, off the event loop where they are large."""
        return await self._place(sum(map(len, pieces)), b"".join, pieces)

    @staticmethod
    async def _compute(
        form: Form, prepared: Prepared, outputs: Sequence[str], deadline: float
    ) -> tuple[Mapping[str, NDArray[Any]], int, int]:
        """Runs the graph, where any of its outputs is wanted."""
        if not outputs:
            return {}, 0, 0
        work = Work(
            feeds=prepared.feeds,
            outputs=outputs,
            batch=prepared.sizes["B"],
            tokens=prepared.sizes["B"] * longest(prepared.sizes),
            deadline=deadline,
            timeout=form.parameters.timeout,
            priority=form.parameters.priority,
        )
        done = await form.model.scheduler.submit(work)
        return done.outputs, done.queue_ns, done.compute_ns

    async def _place(self, size: int, function: Callable[..., R], *arguments: object) -> R:
        """Calls a function here when it has little to do, in a worker thread otherwise."""
        if size < LARGE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)


def _plan_now(form: Form, prepared: Prepared) -> Plan:
    """Plans a reply whose sizes follow from the request's data."""
    return plan_reply(
        form.wanted,
        sizes=prepared.sizes,
        signature=form.model.signature,
        tokens_bytes=len(prepared.extras.get(TOKENS, b"")),
    )


def _as_it_is(pieces: Sequence[Piece]) -> Sequence[Piece]:
    return pieces


def _write_outputs(outputs: Sequence[Planned], content: Mapping[str, NDArray[Any] | bytes]) -> list[Piece]:
    """Selects and converts the outputs, and frames each one's memory for the reply."""
    pieces: list[Piece] = []
    for output in outputs:
        value = content[output.wanted.spec.name]
        if not isinstance(value, bytes):
            value = select(value, output.wanted.heads, output.queries)
            if output.wanted.spec.name != LENGTHS:
                value = convert(value, output.wanted.datatype)
        pieces += frame_tensor(value)
    return pieces
