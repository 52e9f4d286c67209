"""One run in one process: what users send through, and where it is recorded.

Times are seconds from the measured start, so that they are negative in the warm-up.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import gevent
import grpc
from gevent.event import Event
from locust.event import EventHook

from polyhead_client.errors import PolyheadError
from polyhead_load.connection import Answer, Connection, Request
from polyhead_load.errors import LoadError
from polyhead_load.plan import Plan
from polyhead_load.records import MALFORMED, NOTHING, OK, Recorder, Window
from polyhead_load.requests import Author, check_first
from polyhead_load.schedule import Arrival, schedule

_LOG = logging.getLogger(__name__)

_CODES = {code.value[0]: code.name for code in grpc.StatusCode} | {MALFORMED: "malformed reply"}


_REFUSALS = frozenset(
    code.value[0] for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
)


class CallFailedError(Exception):
    """A request has no answer that counts, for locust's table."""


@dataclass(frozen=True)
class Share:
    """Which of the processes that share a load this is."""

    index: int = 0
    count: int = 1


ALONE = Share()


@dataclass(frozen=True, kw_only=True)
class _UnderWay:
    """A request that has no answer yet."""

    request: Request
    planned: float
    sent: float
    """When it began to be handed to gRPC: to write it takes time, as it does for every client, and
    holds up the next one, which shows in that one's send lag."""
    then: Callable[[], object] | None = None
    """Called when it has one: somebody waits."""


class Meter:
    """The processor time of this process between two moments.

    Args:
        start: The first, by `time.perf_counter`.
        seconds: How long after it the second is; or it is when the meter is stopped.
    """

    def __init__(self, start: float, seconds: float) -> None:
        self._began: tuple[float, float, float] | None = None
        self._ended: tuple[float, float] | None = None
        self._greenlets = [_at(start, self._begin), _at(start + seconds, self._end)]

    def stop(self) -> Window:
        """Stop, and return what was measured."""
        gevent.killall(self._greenlets)
        if self._began is None:
            return NOTHING
        self._end()
        (unix, wall, cpu), (wall_end, cpu_end) = self._began, self._ended or (0, 0)
        return Window(started_unix=unix, seconds=wall_end - wall, cpu_seconds=cpu_end - cpu)

    def _begin(self) -> None:
        self._began = (time.time(), time.perf_counter(), time.process_time())

    def _end(self) -> None:
        self._ended = self._ended or (time.perf_counter(), time.process_time())


def _at(moment: float, call: Callable[[], None]) -> "gevent.Greenlet[[], None]":
    """Call at a moment of `time.perf_counter`, which may be infinitely far."""
    delay = min(max(0.0, moment - time.perf_counter()), 1e6)
    return gevent.spawn_later(delay, call)


class Session:
    """One run in one process.

    Args:
        plans: What to send, in turn; they differ in the model at most.
        share: Which part of it.
        request_event: locust's event for requests.
        recorder: Where every request is recorded; None keeps no records.

    Raises:
        LoadError: The server does not take such requests, or cannot be reached.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        request_event: EventHook,
        recorder: Recorder | None,
        share: Share = ALONE,
    ) -> None:
        self._plan = plans[0]
        self._share = share
        self._request_event = request_event
        self._recorder = recorder
        try:
            self._connection = Connection(
                self._plan.address, timeout=self._plan.timeout_seconds, access=self._plan.access
            )
        except (PolyheadError, OSError) as error:
            raise LoadError(str(error)) from error
        try:
            self._requests = _written(self._connection, plans)
        except PolyheadError as error:
            self._connection.close()
            raise LoadError(str(error)) from error
        except BaseException:
            self._connection.close()
            raise
        self._numbers = count(share.index, share.count)
        self._under_way: dict[int, _UnderWay] = {}
        self._tickets = count()
        self._idle = Event()
        self._idle.set()
        self._logged: set[int] = set()
        self.fault: str | None = None
        """In what the first malformed reply was unlike those before it."""
        self._start: float | None = None
        self._meter: Meter | None = None
        self._closed = False

    def begin(self) -> None:
        """Start the clock, for all users of this process, when the first of them begins."""
        if self._start is None:
            # What exists now stays: the collector need not look through it again while load is sent.
            gc.collect()
            gc.freeze()
            self._start = time.perf_counter() + self._plan.warm_up_seconds
            self._meter = Meter(self._start, self._plan.seconds)

    @property
    def now(self) -> float:
        """The time."""
        return time.perf_counter() - self.start

    @property
    def start(self) -> float:
        """The measured start, by `time.perf_counter`."""
        if self._start is None:
            raise RuntimeError("the session has not begun")
        return self._start

    @property
    def is_over(self) -> bool:
        """Nothing more is to be sent."""
        return self.now >= self._plan.seconds

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the part of the schedule that this process has to send.

        Raises:
            LoadError: There is no rate.
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
        """Send a request and return at once; count it as shed where too many are in flight."""
        request = self._requests[arrival.number % len(self._requests)]
        if len(self._under_way) >= self._plan.max_in_flight:
            self._shed(request, arrival.planned)
            return
        self._send(_UnderWay(request=request, planned=arrival.planned, sent=self.now))

    def call(self) -> None:
        """Send the next request, and return when it is answered."""
        request = self._requests[next(self._numbers) % len(self._requests)]
        answered, now = Event(), self.now
        self._send(_UnderWay(request=request, planned=now, sent=now, then=answered.set))
        answered.wait()

    def wait_until_idle(self) -> None:
        """Return when nothing is under way; every request has a deadline."""
        self._idle.wait()

    def close(self) -> Window:
        """End the run; what is still under way is given up, and recorded as unanswered."""
        self._closed = True
        window = NOTHING if self._meter is None else self._meter.stop()
        unanswered = [one for one in self._under_way.values() if one.planned >= 0]
        if unanswered:
            _LOG.warning(
                "%d requests were still under way when the run ended: they are in the records, as unanswered",
                len(unanswered),
            )
        if self._recorder is not None:
            for one in unanswered:
                self._recorder.add_unanswered(
                    planned=one.planned, sent=one.sent, request_bytes=one.request.bytes
                )
        self._connection.close()
        return window

    def _send(self, one: "_UnderWay") -> None:
        ticket = next(self._tickets)
        self._under_way[ticket] = one
        self._idle.clear()
        self._connection.start(one.request, partial(self._answered, ticket))

    def _answered(self, ticket: int, answer: Answer) -> None:
        one = self._under_way.pop(ticket)
        if not self._under_way:
            self._idle.set()
        self._finish(one, answer)
        if one.then is not None:
            one.then()

    def _finish(self, one: "_UnderWay", answer: Answer) -> None:
        request, planned, sent = one.request, one.planned, one.sent
        done = answer.done - self.start
        if self._closed:
            return
        if answer.code == OK and (fault := request.answered(answer.head.tensors)) is not None:
            self.fault = self.fault or f"{request.name} was answered with something else: {fault}"
            answer = replace(answer, code=MALFORMED, details=fault)
        if planned < 0:
            return
        if self._recorder is not None:
            self._recorder.add(
                planned=planned, sent=sent, done=done, request_bytes=request.bytes, answer=answer
            )
        context = {
            "planned": planned,
            "sent": sent,
            "done": done,
            "code": answer.code,
            "request_bytes": request.bytes,
            **answer.head.timings,
        }
        if answer.code == OK:
            self._fire(
                request.wanted.rpc.name,
                request,
                response_time=1e3 * (done - planned),
                response_length=answer.bytes,
                exception=None,
                context=context,
            )
            return
        error = _CODES.get(answer.code, str(answer.code))
        if answer.code not in self._logged:  # once: there may be thousands
            self._logged.add(answer.code)
            _LOG.warning("%s: %s: %s", request.name, error, answer.details)
        self._fire_failed("refused" if answer.code in _REFUSALS else "failed", request, error, context)

    def _shed(self, request: Request, planned: float) -> None:
        if planned < 0:
            return
        if self._recorder is not None:
            self._recorder.add_shed(planned=planned, request_bytes=request.bytes)
        error = f"{self._plan.max_in_flight} in flight"
        self._fire_failed("not sent", request, error, {"planned": planned})

    def _fire_failed(self, kind: str, request: Request, error: str, context: Mapping[str, Any]) -> None:
        """Tell locust of a request that has no latency; such requests have a row of their own."""
        self._fire(
            kind,
            request,
            response_time=None,  # which locust leaves out of its percentiles
            response_length=0,
            exception=CallFailedError(error),
            context=context,
        )

    def _fire(self, kind: str, request: Request, **facts: Any) -> None:
        self._request_event.fire(request_type=kind, name=request.name, response=None, **facts)


def _written(connection: Connection, plans: Sequence[Plan]) -> list[Request]:
    """Return the requests of all plans, in turn, when the first of each has been accepted."""
    author = Author(connection, plans[0].address)
    pools: list[list[Request]] = []
    for plan in plans:
        pool: list[Request] = []
        for request in author.requests(plan):
            pool.append(request)
            gevent.sleep(0)  # heartbeats of a locust worker are due meanwhile
        check_first(connection, pool[0], author.first)
        pools.append(pool)
    longest = max(map(len, pools))
    return [pool[number % len(pool)] for number in range(longest) for pool in pools]
