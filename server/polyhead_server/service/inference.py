"""One inference, from the request's bytes to the reply's."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyhead_server.counters.layout import LOADING
from polyhead_server.errors import InvalidRequestError, TooLargeError, UnavailableError
from polyhead_server.observation import CURRENT
from polyhead_server.registry import Model, Registry
from polyhead_server.scheduling import Work
from polyhead_server.service.decoding import Decoded, read_inputs
from polyhead_server.service.forms import Form, Forms, Plan, plan_reply
from polyhead_server.service.outputs import Planned
from polyhead_server.service.parts import Parts, PartWriter, plan_parts, write_part_head
from polyhead_server.service.reply import Piece, check_size, frame_tensor, write_id, write_timings
from polyhead_server.service.selection import convert, select
from polyhead_server.service.tensors import pack_strings
from polyhead_server.service.wire import LARGE, InferRequest, judge_infer, split_infer
from polyhead_server.settings import Settings
from polyhead_server.signature import LENGTHS, TOKENS, Signature
from polyhead_server.tokeniser import check_total

R = TypeVar("R")

_PARSING = 32
"""Bytes that are copied in the time in which one byte of a message is parsed and checked."""


@dataclass(kw_only=True, slots=True)
class Prepared:
    """What the engine needs, and what the reply holds besides its outputs."""

    feeds: Mapping[str, NDArray[Any]]
    extras: Mapping[str, NDArray[Any] | bytes]
    """`tokens` and `lengths`, which no graph gives."""
    batch: int
    tokens: int
    tokenise_ns: int | None


@dataclass(kw_only=True, slots=True)
class Ran:
    """A request that has been computed, and how long that took."""

    plan: Plan
    batch: int
    tokenise_ns: int | None
    content: dict[str, NDArray[Any] | bytes]
    """Every output by its name."""
    started_ns: int
    parse_ns: int
    input_ns: int
    queue_ns: int
    compute_ns: int

    def timings(self, output_ns: int) -> Mapping[str, int]:
        """What the reply says about time."""
        timings = {"parse_ns": self.parse_ns}
        if self.tokenise_ns is not None:
            timings["tokenise_ns"] = self.tokenise_ns
        return timings | {
            "queue_ns": self.queue_ns,
            "compute_ns": self.compute_ns,
            "serialise_ns": output_ns,
        }


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

    async def answer(self, payload: bytes, deadline: float | None) -> Sequence[Piece]:
        """Answers one request.

        Args:
            payload: A `ModelInferRequest`.
            deadline: When the caller stops waiting, in the event loop's time.

        Returns:
            The pieces of a `ModelInferResponse`, to be put one after the other.

        Raises:
            RequestError: The caller is told why.
            EngineError: The engine failed.
        """
        started_ns = time.perf_counter_ns()
        request = self._take_apart(payload, started_ns) or await self._judge(payload, started_ns)
        form = self._forms.recall(request) or await self._new_form(request, started_ns)
        with _failures(form.model, started_ns):
            if form.parameters.parts:
                raise InvalidRequestError(
                    "parameter parts of the request must be left out or false: "
                    "a reply in parts is for ModelStreamInfer"
                )
            return await self._answer_whole(form, request, len(payload), started_ns, deadline)

    async def stream(self, payload: bytes, deadline: float | None) -> AsyncGenerator[Sequence[Piece]]:
        """Answers one request of a stream: with one reply, or in parts where it asks for them.

        The next part is worked out when it is asked for, and memory of what has been sent is let go.

        Args:
            payload: A `ModelInferRequest`.
            deadline: When the caller stops waiting, in the event loop's time.

        Yields:
            The pieces of one `ModelInferResponse` after the other.

        Raises:
            RequestError: The caller is told why.
            EngineError: The engine failed.
        """
        started_ns = time.perf_counter_ns()
        request = self._take_apart(payload, started_ns) or await self._judge(payload, started_ns)
        form = self._forms.recall(request) or await self._new_form(request, started_ns)
        size = len(payload)
        del payload
        if not form.parameters.parts:
            with _failures(form.model, started_ns):
                whole = await self._answer_whole(form, request, size, started_ns, deadline)
            yield whole
            return
        model, head_id = form.model, write_id(request.request_id)
        with _failures(model, started_ns):
            ran, parts = await self._run(
                form, request, self._plan_parts, size=size, started_ns=started_ns, deadline=deadline
            )
        del request
        writer = PartWriter(ran.content)
        ran.content.clear()
        output_ns = 0
        for index, part in enumerate(parts):
            with _failures(model, started_ns):
                part_started_ns = time.perf_counter_ns()
                head = write_part_head(part, model.signature, index=index, count=parts.count)
                pieces: list[Piece] = [head, head_id]
                pieces += await self._place(min(part.output.bytes, parts.room), writer.write, part)
                output_ns += time.perf_counter_ns() - part_started_ns
                if index < parts.count - 1:
                    yield pieces
                    del pieces  # before the next is made
        _succeeded(model, ran, output_ns)
        yield [*pieces, write_timings(ran.timings(output_ns))]

    def _take_apart(self, payload: bytes, started_ns: int) -> InferRequest | None:
        try:
            return split_infer(payload)
        except InvalidRequestError:
            with self._misses(started_ns):
                raise

    async def _judge(self, payload: bytes, started_ns: int) -> InferRequest:
        """Takes apart what only protobuf understands, if anybody."""
        with self._misses(started_ns):
            return await self._place(len(payload) * _PARSING, judge_infer, payload)

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

    async def _new_form(self, request: InferRequest, started_ns: int) -> Form:
        """Checks a form that is not known yet, and remembers it."""
        effort = len(request.head) * _PARSING
        with self._misses(started_ns):
            message = await self._place(effort, request.message)
        while True:
            with self._misses(started_ns):
                model = self._registry.find(message.model_name, message.model_version)
            with _failures(model, started_ns):
                form = await self._place(effort, self._forms.check, request, message, model)
            # Another may have taken its place while a large head was checked.
            if model is self._registry.find(message.model_name, message.model_version):
                self._forms.remember(request, form)
                return form

    async def _answer_whole(
        self, form: Form, request: InferRequest, size: int, started_ns: int, deadline: float | None
    ) -> Sequence[Piece]:
        ran, _ = await self._run(
            form, request, self._check_whole, size=size, started_ns=started_ns, deadline=deadline
        )
        output_started_ns = time.perf_counter_ns()
        pieces = await self._place(ran.plan.effort, _write_outputs, ran.plan.outputs, ran.content)
        output_ns = time.perf_counter_ns() - output_started_ns
        _succeeded(form.model, ran, output_ns)
        return [ran.plan.head, write_id(request.request_id), write_timings(ran.timings(output_ns)), *pieces]

    def _check_whole(self, plan: Plan, request: InferRequest, _signature: Signature) -> None:
        needed = plan.size + len(write_id(request.request_id))
        check_size(needed, plan.outputs, self._settings.max_reply_bytes)

    def _plan_parts(self, plan: Plan, request: InferRequest, signature: Signature) -> Parts:
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
        check: Callable[[Plan, InferRequest, Signature], R],
        *,
        size: int,
        started_ns: int,
        deadline: float | None,
    ) -> tuple["Ran", R]:
        """Does everything but writing the reply; `check` sees its sizes before anything is computed."""
        signature = form.model.signature
        decoded = await self._place(size, read_inputs, form.inputs, request.raw, signature, self._settings)
        parse_ns = time.perf_counter_ns() - started_ns
        # Tokenising costs more than a hop to another thread, whatever the length of the text.
        large = LARGE if form.plan is None else size
        prepared = await self._place(large, _prepare, form, decoded, self._settings)
        plan = form.plan or _plan_now(form, prepared)
        checked = check(plan, request, signature)
        input_ns = time.perf_counter_ns() - started_ns

        arrays, queue_ns, compute_ns = await self._compute(form, prepared, plan.computed, deadline)
        ran = Ran(
            plan=plan,
            batch=prepared.batch,
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

    async def join(self, pieces: Sequence[Piece]) -> bytes:
        """Puts pieces together, off the event loop where they are large."""
        return await self._place(sum(map(len, pieces)), b"".join, pieces)

    @staticmethod
    async def _compute(
        form: Form, prepared: Prepared, outputs: Sequence[str], deadline: float | None
    ) -> tuple[Mapping[str, NDArray[Any]], int, int]:
        """Runs the graph, where any of its outputs is wanted."""
        if not outputs:
            return {}, 0, 0
        work = Work(
            feeds=prepared.feeds,
            outputs=outputs,
            batch=prepared.batch,
            tokens=prepared.batch * prepared.tokens,
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


@contextmanager
def _failures(model: Model, started_ns: int) -> Iterator[None]:
    """Uses a model, and counts a request that gets no reply."""
    try:
        with model.lease:
            yield
    except BaseException as error:
        model.statistics.failed(total_ns=time.perf_counter_ns() - started_ns, error=error)
        if (record := CURRENT.get()) is not None:
            record.reached(model.signature.name, model.signature.version)
        raise


def _succeeded(model: Model, ran: Ran, output_ns: int) -> None:
    """Counts a request that gets its reply."""
    total_ns = time.perf_counter_ns() - ran.started_ns
    model.statistics.succeeded(
        batch=ran.batch,
        total_ns=total_ns,
        parse_ns=ran.parse_ns,
        tokenise_ns=ran.tokenise_ns,
        input_ns=ran.input_ns,
        queue_ns=ran.queue_ns,
        compute_ns=ran.compute_ns,
        serialise_ns=output_ns,
    )
    if (record := CURRENT.get()) is not None:
        record.reached(model.signature.name, model.signature.version)
        record.batch = ran.batch
        record.stages = {"parse": (0, ran.parse_ns)}
        if ran.tokenise_ns is not None:
            record.stages["tokenise"] = (ran.parse_ns, ran.tokenise_ns)
        record.stages["queue"] = (ran.input_ns, ran.queue_ns)
        record.stages["compute"] = (ran.input_ns + ran.queue_ns, ran.compute_ns)
        record.stages["serialise"] = (total_ns - output_ns, output_ns)


def _prepare(form: Form, decoded: Decoded, settings: Settings) -> Prepared:
    """Tokenises, and fills in what may be left out."""
    model, signature = form.model, form.model.signature
    feeds = dict(decoded.arrays)
    names: Sequence[Sequence[str]] | None = None
    tokenise_ns = None
    if decoded.texts is not None and model.tokeniser is not None:
        started_ns = time.perf_counter_ns()
        tokenised = model.tokeniser.encode(
            decoded.texts,
            truncate=form.parameters.truncate,
            max_total=settings.max_request_tokens,
            with_tokens=form.wants_tokens,
        )
        feeds["input_ids"], feeds[LENGTHS] = tokenised.input_ids, tokenised.lengths
        if "token_type_ids" in signature.inputs:
            feeds["token_type_ids"] = tokenised.token_type_ids
        names = tokenised.tokens
        tokenise_ns = time.perf_counter_ns() - started_ns
    batch, tokens = feeds[signature.primary].shape[:2]
    _check_work(batch, tokens, signature, settings)
    _complete(feeds, batch, tokens, signature)
    extras: dict[str, NDArray[Any] | bytes] = {}
    if LENGTHS in signature.outputs:
        extras[LENGTHS] = feeds[LENGTHS]
    if form.wants_tokens and model.tokeniser is not None:
        names = names or model.tokeniser.tokens_of(feeds["input_ids"], feeds[LENGTHS])
        extras[TOKENS] = pack_strings(names, tokens)
    return Prepared(feeds=feeds, extras=extras, batch=batch, tokens=tokens, tokenise_ns=tokenise_ns)


def _plan_now(form: Form, prepared: Prepared) -> Plan:
    """Plans a reply whose sizes follow from the request's data."""
    return plan_reply(
        form.wanted,
        batch=prepared.batch,
        tokens=prepared.tokens,
        signature=form.model.signature,
        tokens_bytes=len(prepared.extras.get(TOKENS, b"")),
    )


def _check_work(batch: int, tokens: int, signature: Signature, settings: Settings) -> None:
    """Checks what the engine would have to do.

    Raises:
        TooLargeError: These are too many tokens, or their attention takes too much memory.
    """
    check_total(batch, tokens, settings.max_request_tokens)
    needed = signature.working_bytes(batch, tokens)
    if needed > settings.max_working_bytes:
        fast = ", or the fast model if its output is enough" if signature.graph != "fast" else ""
        raise TooLargeError(
            f"computing B {batch} × T {tokens} needs about {needed} bytes of memory, the limit is "
            f"{settings.max_working_bytes}: send fewer or shorter sequences{fast}"
        )


def _complete(feeds: dict[str, NDArray[Any]], batch: int, tokens: int, signature: Signature) -> None:
    """Fills in inputs that were left out, and turns the others into the graph's own datatypes."""
    if LENGTHS not in feeds:
        feeds[LENGTHS] = np.full(batch, tokens, np.int32)
    feeds[LENGTHS] = feeds[LENGTHS].astype(np.int32, copy=False)
    if "token_type_ids" in signature.inputs and "token_type_ids" not in feeds:
        feeds["token_type_ids"] = np.zeros((batch, tokens), np.int64)
    if "mask" in signature.inputs and "mask" not in feeds:
        feeds["mask"] = np.ones((batch, tokens, tokens), np.bool_)
    if "x" in feeds:
        feeds["x"] = feeds["x"].astype(np.float32, copy=False)


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
