"""Inference over HTTP: requests are read, answered by the runtime, and their replies written."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from starlette.exceptions import HTTPException

from polyhead_server.errors import InvalidRequestError, TooLargeError
from polyhead_server.http.bodies import Bodies, Reply, until_left
from polyhead_server.http.calls import ApiCall, CallForm, Kept, cheapest, chunks_of, halves, named_or_only
from polyhead_server.http.documents import read_json
from polyhead_server.http.endpoint import BINARY, JSON_BYTES, PRIORITY, TIMEOUT, Answer, Caller
from polyhead_server.http.tensors import NUMBERS_AT_ONCE, IsBinary, Parameters, read_request, write_reply
from polyhead_server.http.threadsafe import ThreadsafeRuntime
from polyhead_server.inference.reply import detach
from polyhead_server.inference.wire import LARGE, InferRequest
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.budget import Reservation

_BYTES_PER_NUMBER = 12
_COPIED_PER_PARSED = 64
"""Binary tensors are only copied: so many bytes of them take as long as a byte of JSON."""

T = TypeVar("T")
_Translate = Callable[[memoryview, Parameters], tuple[int, T]]


class Inferences:
    """Answer inference requests: of the Open Inference Protocol, and calls of other APIs.

    Args:
        runtime: The runtime.
        bodies: Reads requests.
    """

    def __init__(self, runtime: ThreadsafeRuntime, bodies: Bodies) -> None:
        self._runtime = runtime
        self._bodies = bodies

    async def infer(self, caller: Caller) -> Reply:
        """Answer `/v2/models/NAME/infer`."""
        model, version = caller.model

        def work_bytes(body: memoryview) -> int:
            size = JSON_BYTES.read(caller.request)
            return len(body) if size is None else size + len(body) // _COPIED_PER_PARSED

        def translate(body: memoryview, given: Parameters) -> tuple[int, tuple[InferRequest, IsBinary]]:
            size = JSON_BYTES.read(caller.request)
            request, is_binary = read_request(body, size, model=model, version=version, given=given)
            return request.size, (request, is_binary)

        held = caller.until_sent.enter_context(self._runtime.reserve())
        (request, is_binary), deadline = await self._read(
            caller, translate, held, types=[BINARY], work_bytes=work_bytes
        )
        reply = await self._runtime.infer(request, detach, deadline=deadline, held=held)
        del request  # before the reply is translated
        written = write_reply(reply, is_binary)
        cost = _BYTES_PER_NUMBER * written.elements
        if not written.raw and written.elements > NUMBERS_AT_ONCE:
            return Reply(content=written.json, work_bytes=cost)
        text: bytes = await self._bodies.run(cost, b"".join, written.json)
        if not written.raw:
            return Reply.of(text)
        size = len(text) + sum(map(len, written.raw))
        headers = {JSON_BYTES.name: str(len(text))}
        return Reply(content=(text, *written.raw), size=size, media_type=BINARY, headers=headers)

    def answer_to(self, form: CallForm) -> Answer:
        """Return what answers calls of a form, which become inference requests."""

        async def answer(caller: Caller) -> Reply:
            models = [signature.name for signature in form.served(self._runtime.registry)]

            def translate(
                body: memoryview, given: Parameters
            ) -> tuple[int, tuple[ApiCall, Signature, list[range]]]:
                fields = form.fields.read(read_json(body), "the request")
                registry = self._runtime.registry
                named = registry.find(named_or_only(fields, models, form.does)).signature
                call = form.read(fields, named, given)
                graphs = (model.signature for model in registry.models())
                signature = cheapest(named, graphs, call.roles)
                call.check(signature)
                return len(body), (call, signature, chunks_of(call, self._runtime.settings))

            held = caller.until_sent.enter_context(self._runtime.reserve())
            (call, signature, chunks), deadline = await self._read(caller, translate, held)
            kept = await self._infer_chunks(call, signature, chunks, deadline, held)
            values, tokens = call.values(kept)
            content = form.write(call, signature, tokens, *values)
            numbers = sum(each.size for each in kept) // 4
            cost = _BYTES_PER_NUMBER * numbers + call.returned_bytes
            return Reply.of(await self._bodies.run(cost, b"".join, content))

        return answer

    async def _infer_chunks(
        self,
        call: ApiCall,
        signature: Signature,
        chunks: Iterable[range],
        deadline: float,
        held: Reservation,
    ) -> list[Kept]:
        """Return what is kept of the replies to the chunks of a call, each made when its turn comes.

        One that is too large is sent in halves, and so are all larger ones after it.
        """
        kept: list[Kept] = []
        waiting, most = deque(chunks), math.inf
        while waiting:
            chunk = waiting.popleft()
            if len(chunk) > most:
                waiting.extendleft(reversed(halves(chunk)))
                continue
            try:
                with call.located(chunk):
                    kept.append(await self._infer_chunk(call, signature, chunk, deadline, held))
            except TooLargeError:
                if len(chunk) == 1:
                    raise
                most = -(-len(chunk) // 2)
                waiting.appendleft(chunk)
        return kept

    async def _infer_chunk(
        self, call: ApiCall, signature: Signature, chunk: range, deadline: float, held: Reservation
    ) -> Kept:
        before, settings = held.bytes, self._runtime.settings
        kept: Kept | None = None
        with self._counted():
            size = sum(each.text_bytes + each.tokens for each in call.sizes[chunk.start : chunk.stop])
            request = await self._bodies.run(size, call.request, signature, settings, chunk)
            held.add(request.size + len(chunk) * call.written_bytes)
        try:
            kept = await self._runtime.infer(
                request,
                call.keep,
                deadline=deadline,
                held=held,
                most_bytes=call.most_bytes(chunk, settings),
                work_bytes=LARGE if call.written_bytes else 0,
            )
            return kept
        finally:
            held.add(before + (0 if kept is None else kept.size) - held.bytes)

    async def _read(
        self,
        caller: Caller,
        translate: _Translate[T],
        held: Reservation,
        *,
        types: Sequence[str] = (),
        work_bytes: Callable[[memoryview], int] = len,
    ) -> tuple[T, float]:
        """Read and translate an inference; count one that is rejected here. Then the client may leave.

        Args:
            caller: Has sent it.
            translate: Returns what a body and the parameters that headers give stand for, and the bytes that
                this keeps in memory.
            held: Has the bytes.
            types: Media types that the body may have, beside JSON.
            work_bytes: Returns what it costs to translate a body, in bytes of JSON.

        Returns:
            What it stands for, and its deadline.
        """
        began = time.monotonic()
        with self._counted():
            seconds, priority = TIMEOUT.read(caller.request), PRIORITY.read(caller.request)
            given = {} if priority is None else {"priority": priority}
            caller.check_type(*types)
            body = await self._bodies.read(caller.request, held)
            size, translated = await self._bodies.run(work_bytes(body), translate, body, given)
            del body
            held.add(size - held.bytes)
        await caller.until_sent.enter_async_context(until_left(caller.request.receive))
        return translated, math.inf if seconds is None else began + seconds

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count an inference that ends in the block, before the runtime has it."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            # No variable of ours may refer to the error, whose traceback refers to the caller and the body.
            self._runtime.soon(
                partial(
                    self._runtime.registry.unattributed.failed,
                    total_ns=time.perf_counter_ns() - began_ns,
                    error=InvalidRequestError(error.detail) if isinstance(error, HTTPException) else error,
                )
            )
            raise
