"""Admits work for one model, runs it, and gives every caller exactly one answer.

It runs requests one by one, in the order of arrival, in a worker thread. What comes later (batching,
priorities) replaces the inside of `_run`; `submit` and `close` stay.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from polyhead_server.engine import Arrays, Runner
from polyhead_server.errors import EngineError, ExpiredError, UnavailableError

_SHORTEST_RETRY_MS = 20
_LONGEST_RETRY_MS = 5000


@dataclass(frozen=True, kw_only=True)
class Work:
    """One request for the engine."""

    feeds: Arrays
    """Every input of the graph, (B, …)."""
    outputs: Sequence[str]
    batch: int
    tokens: int
    """B × T, padding included: what it costs to hold and, about, to run."""
    deadline: float | None = None
    """When the caller stops waiting, in the event loop's time."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """The engine's answer to one `Work`."""

    outputs: Mapping[str, NDArray[Any]]
    queue_ns: int
    compute_ns: int
    batch: int
    """The sequences that ran together."""


@dataclass(eq=False)
class _Entry:
    work: Work
    answer: asyncio.Future[Done]
    arrived_ns: int
    waiting: bool = True


class Scheduler:
    """The queue in front of one engine. Lives on one event loop.

    Args:
        engine: What computes.
        name: The model's, for messages.
        max_queued_tokens: The most tokens that may wait. One request is always admitted when none waits.
    """

    def __init__(self, engine: Runner, *, name: str, max_queued_tokens: int) -> None:
        self._engine = engine
        self._name = name
        self._max_queued_tokens = max_queued_tokens
        self._queue: deque[_Entry] = deque()
        self._queued_tokens = 0
        self._seconds_per_token = 0.0
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"engine-{name}")

    async def submit(self, work: Work) -> Done:
        """Waits for its turn, runs, and returns the outputs.

        A caller that is cancelled or late before its turn is forgotten: its work never runs.

        Raises:
            UnavailableError: The queue is full, or closed.
            ExpiredError: The deadline passed.
            EngineError: The engine failed on this work.
            TooLargeError: There was not enough memory.
        """
        loop = asyncio.get_running_loop()
        self._admit(work)
        entry = _Entry(work, loop.create_future(), time.perf_counter_ns())
        self._queue.append(entry)
        self._queued_tokens += work.tokens
        if self._runner is None or self._runner.done():
            self._runner = loop.create_task(self._run())
        try:
            async with asyncio.timeout_at(work.deadline):
                return await entry.answer
        except TimeoutError:
            raise ExpiredError("the deadline passed before there was an answer") from None
        finally:
            entry.answer.cancel()
            self._forget(entry)

    async def close(self) -> None:
        """Refuses what waits, ends what runs, and returns when everyone has an answer."""
        self._closed = True
        while self._queue:
            self._fail(self._next(), self._stopped())
        self._engine.stop()
        if self._runner is not None:
            await self._runner
        self._thread.shutdown(wait=False)

    def _admit(self, work: Work) -> None:
        if self._closed:
            raise self._stopped()
        waiting = self._queued_tokens
        if waiting and waiting + work.tokens > self._max_queued_tokens:
            raise UnavailableError(
                f"{self._name}'s queue is full: {waiting} tokens wait, {work.tokens} more would pass "
                f"{self._max_queued_tokens}; try again later",
                retry_after_ms=self._retry_after_ms(),
            )

    def _retry_after_ms(self) -> int:
        """About when half the queue will be gone."""
        estimate = round(self._queued_tokens * self._seconds_per_token * 1000 / 2)
        return min(max(estimate, _SHORTEST_RETRY_MS), _LONGEST_RETRY_MS)

    def _next(self) -> _Entry:
        entry = self._queue.popleft()
        entry.waiting = False
        self._queued_tokens -= entry.work.tokens
        return entry

    def _forget(self, entry: _Entry) -> None:
        if entry.waiting:
            entry.waiting = False
            self._queue.remove(entry)
            self._queued_tokens -= entry.work.tokens

    async def _run(self) -> None:
        while self._queue:
            entry = self._next()
            # A caller that gave up in this very turn of the loop has not been forgotten yet.
            if not entry.answer.done():
                await self._run_one(entry)

    async def _run_one(self, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        work = entry.work
        if work.deadline is not None and loop.time() >= work.deadline:
            self._fail(entry, ExpiredError("the deadline passed in the queue"))
            return
        started_ns = time.perf_counter_ns()
        try:
            outputs = await loop.run_in_executor(self._thread, self._engine.run, work.feeds, work.outputs)
        except Exception as error:
            self._fail(entry, self._stopped() if self._closed and isinstance(error, EngineError) else error)
            return
        compute_ns = time.perf_counter_ns() - started_ns
        self._seconds_per_token += 0.2 * (compute_ns / 1e9 / work.tokens - self._seconds_per_token)
        if not entry.answer.done():
            entry.answer.set_result(
                Done(
                    outputs=outputs,
                    queue_ns=started_ns - entry.arrived_ns,
                    compute_ns=compute_ns,
                    batch=work.batch,
                )
            )

    @staticmethod
    def _fail(entry: _Entry, error: Exception) -> None:
        if not entry.answer.done():
            entry.answer.set_exception(error)

    @staticmethod
    def _stopped() -> UnavailableError:
        return UnavailableError("the server is stopping", retry_after_ms=_SHORTEST_RETRY_MS)
