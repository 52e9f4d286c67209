"""Send the requests of one run in one process, and record them.

Times are seconds from the measured start, so that they are negative in the warm-up.
"""

import gc
import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import gevent
import grpc
from gevent.event import Event
from locust.event import EventHook

from polyhead_client.errors import PolyheadError
from polyhead_load.connection import Answer, LoadConnection, Request
from polyhead_load.errors import LoadError
from polyhead_load.load_plan import LoadPlan
from polyhead_load.records import MALFORMED, OK, SHED, UNANSWERED, RequestSample, Window, status_name
from polyhead_load.requests import RequestBuilder
from polyhead_load.schedule import Arrival, schedule

_LOG = logging.getLogger(__name__)

_REFUSALS = frozenset(
    code.value[0] for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
)


class CallFailedError(Exception):
    """A request without a valid answer, for locust's table."""


@dataclass(frozen=True)
class Share:
    """Which of the processes that share a load this is."""

    index: int = 0
    count: int = 1


ALONE = Share()


@dataclass(frozen=True, kw_only=True, eq=False)
class _InFlight:
    """A request without an answer."""

    request: Request
    planned: float
    sent: float
    """When it began to be handed to gRPC. That takes time, as in every client, and delays the next request,
    which shows in that one's send lag."""
    then: Callable[[], object] | None = None
    """Called after the answer."""


class _CpuMeter:
    """Measure the CPU time of this process in a window of `seconds` from `start`, by perf_counter."""

    def __init__(self, start: float, seconds: float) -> None:
        self._marks: list[tuple[float, float, float]] = []
        now = time.perf_counter()
        self._greenlets = [
            # The end may be infinitely far.
            gevent.spawn_later(min(max(0.0, moment - now), 1e6), self._mark)
            for moment in (start, start + seconds)
        ]

    def stop(self) -> Window | None:
        """End the window if it has not ended; return None where it has not begun."""
        gevent.killall(self._greenlets)
        if not self._marks:
            return None
        self._mark()
        (unix, wall, cpu), (_, wall_end, cpu_end) = self._marks[:2]
        return Window(started_unix=unix, seconds=wall_end - wall, cpu_seconds=cpu_end - cpu)

    def _mark(self) -> None:
        self._marks.append((time.time(), time.perf_counter(), time.process_time()))


class Session:
    """One run in one process.

    Args:
        plans: What to send, one for each model, as often and in random order; each at the same address.
        share: Which part of the load to send.
        request_event: locust's event for requests.
        record: Whether to keep records.

    Raises:
        LoadError: The server does not take such requests, or cannot be reached.
    """

    def __init__(
        self, plans: Sequence[LoadPlan], *, request_event: EventHook, record: bool, share: Share = ALONE
    ) -> None:
        self._plan = plans[0]
        self._share = share
        self._request_event = request_event
        self._record = record
        self.records: list[RequestSample] = []
        """What became of every request after the warm-up."""
        self.fault: str | None = None
        """How the first malformed reply differed from those before it."""
        try:
            with ExitStack() as failing:
                self._connection = LoadConnection(
                    self._plan.address, timeout=self._plan.timeout_seconds, access=self._plan.access
                )
                failing.callback(self._connection.close)
                builder = RequestBuilder(self._connection)
                pools = [builder.build(plan) for plan in plans]
                failing.pop_all()
        except (PolyheadError, OSError) as error:
            raise LoadError(str(error)) from error
        longest = max(map(len, pools))
        self._requests = [pool[number % len(pool)] for number in range(longest) for pool in pools]
        if len(pools) > 1:  # in turn, each model would have more regular arrivals than a Poisson process
            random.Random(self._plan.seed).shuffle(self._requests)  # noqa: S311 - an order, no secret
        self._numbers = count(share.index, share.count)
        self._in_flight: set[_InFlight] = set()
        self._idle = Event()
        self._idle.set()
        self._logged: set[int] = set()
        self._start: float | None = None
        self._meter: _CpuMeter | None = None
        self._closed = False

    def begin(self) -> None:
        """Start the clock of this process, when the first of its users begins."""
        if self._start is None:
            # Objects that exist now stay: the collector need not visit them again while load is sent.
            gc.collect()
            gc.freeze()
            self._start = time.perf_counter() + self._plan.warm_up_seconds
            self._meter = _CpuMeter(self._start, self._plan.seconds)

    @property
    def start(self) -> float:
        """Return the measured start, by `time.perf_counter`."""
        if self._start is None:
            raise RuntimeError("the session has not begun")
        return self._start

    @property
    def now(self) -> float:
        """Return the time since the measured start."""
        return time.perf_counter() - self.start

    @property
    def is_over(self) -> bool:
        """Return whether all has been sent."""
        return self.now >= self._plan.seconds

    def arrivals(self) -> Iterator[Arrival]:
        """Yield this process's part of the schedule.

        Raises:
            LoadError: The plan has no rate.
        """
        if self._plan.rate is None:
            raise LoadError("rate must be given for an open loop")
        return schedule(
            self._plan.rate,
            seconds=self._plan.seconds,
            warm_up_seconds=self._plan.warm_up_seconds,
            seed=self._plan.seed,
            index=self._share.index,
            count=self._share.count,
        )

    def dispatch(self, arrival: Arrival) -> None:
        """Send a request and return at once; shed it where too many are in flight."""
        request = self._requests[arrival.number % len(self._requests)]
        if len(self._in_flight) < self._plan.max_in_flight:
            self._send(_InFlight(request=request, planned=arrival.planned, sent=self.now))
        elif arrival.planned >= 0:
            self._add(RequestSample(arrival.planned, math.nan, math.nan, SHED, request.bytes))
            self._fire("not sent", request, error=f"{self._plan.max_in_flight} in flight")

    def call(self) -> None:
        """Send the next request, and return when it is answered."""
        request = self._requests[next(self._numbers) % len(self._requests)]
        answered, now = Event(), self.now
        self._send(_InFlight(request=request, planned=now, sent=now, then=answered.set))
        answered.wait()

    def wait_until_idle(self) -> None:
        """Return when nothing is in flight; every request has a deadline."""
        self._idle.wait()

    def close(self) -> Window | None:
        """End the run; requests in flight are recorded as unanswered.

        Returns:
            The measured window, or None where the run ended in the warm-up.
        """
        self._closed = True
        window = None if self._meter is None else self._meter.stop()
        unanswered = [one for one in self._in_flight if one.planned >= 0]
        if unanswered:
            _LOG.warning(
                "%d requests were still under way when the run ended, without a latency: "
                "--stop-timeout 30s waits for them",
                len(unanswered),
            )
        for one in unanswered:
            self._add(RequestSample(one.planned, one.sent, math.nan, UNANSWERED, one.request.bytes))
        self._connection.close()
        return window

    def _send(self, one: _InFlight) -> None:
        self._in_flight.add(one)
        self._idle.clear()
        self._connection.start(one.request, partial(self._on_answer, one))

    def _on_answer(self, one: _InFlight, answer: Answer) -> None:
        self._in_flight.discard(one)
        if not self._in_flight:
            self._idle.set()
        if not self._closed:
            self._finish(one, answer)
        if one.then is not None:
            one.then()

    def _finish(self, one: _InFlight, answer: Answer) -> None:
        request = one.request
        if answer.code == OK and (fault := request.fault(answer.header.tensors)) is not None:
            self.fault = self.fault or f"{request.name} was answered with something else: {fault}"
            answer = replace(answer, code=MALFORMED, details=fault)
        if one.planned < 0:
            return
        done = answer.done - self.start
        record = RequestSample(one.planned, one.sent, done, answer.code, request.bytes, answer.bytes)
        self._add(record._replace(**answer.header.timings))
        if answer.code == OK:
            ms = 1e3 * (done - one.planned)
            self._fire(request.wanted.rpc.name, request, ms=ms, size=answer.bytes)
            return
        error = "malformed reply" if answer.code == MALFORMED else status_name(answer.code)
        if answer.code not in self._logged:  # once: there may be thousands
            self._logged.add(answer.code)
            _LOG.warning("%s: %s: %s", request.name, error, answer.details)
        self._fire("refused" if answer.code in _REFUSALS else "failed", request, error=error)

    def _fire(
        self, kind: str, request: Request, *, ms: float | None = None, size: int = 0, error: str = ""
    ) -> None:
        """Report a request to locust; one that failed has a row of its own type, and no latency."""
        self._request_event.fire(
            request_type=kind,
            name=request.name,
            response=None,
            response_time=ms,  # locust leaves None out of its percentiles
            response_length=size,
            exception=CallFailedError(error) if error else None,
            context={},
        )

    def _add(self, record: RequestSample) -> None:
        if self._record:
            self.records.append(record)
