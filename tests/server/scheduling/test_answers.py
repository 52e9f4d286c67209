"""Every caller gets exactly one answer, whatever happens: random schedules on a virtual clock."""

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings
from tests.server.scheduling.conftest import Bench, Prices

from polyhead_server.errors import EngineError, ExpiredError, UnavailableError
from polyhead_server.observability.statistics import Drop
from polyhead_server.scheduling import Done
from polyhead_server.scheduling.admission import Entry

LANE = Prices(0.01, token=0.001)
WIDE = Prices(0.008, token=0.0006)
SMALL = Prices(0.0, token=1e-5)
"""Some of it runs on the event loop."""


def most_rows(tokens: int, _at_once: int = 1) -> int:
    return max(1, 64 // tokens)


@dataclass(frozen=True)
class Caller:
    pause: float
    """Before it arrives, in seconds."""
    batch: int
    length: int
    priority: int
    deadline: float | None
    timeout: float | None
    leaves: float | None
    """When it leaves, in seconds after it came."""
    guilty: bool

    @property
    def lengths(self) -> list[int]:
        """Those of its sequences, which differ."""
        return [max(1, self.length - number) for number in range(self.batch)]


seconds = st.sampled_from([0.0, 0.001, 0.01, 0.03, 0.1, 0.4])
callers = st.builds(
    Caller,
    pause=st.sampled_from([0.0, 0.0, 0.0, 0.002, 0.02]),
    batch=st.sampled_from([1, 1, 1, 3, 20]),
    length=st.sampled_from([1, 2, 4, 4, 15, 30]),
    priority=st.sampled_from([0, 0, 1, 5, 9]),
    deadline=st.none() | seconds,
    timeout=st.none() | st.none() | seconds,
    leaves=st.none() | st.none() | seconds,
    guilty=st.sampled_from([False] * 9 + [True]),
)


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    schedule=st.lists(callers, max_size=40),
    small=st.booleans(),
    most=st.sampled_from([50, 10_000]),
    closes=st.none() | seconds,
    lanes=st.sampled_from([1, 2, 3]),
    wide=st.booleans(),
    packed=st.booleans(),
)
async def test_every_caller_gets_exactly_one_answer(
    schedule: list[Caller],
    small: bool,
    most: int,
    closes: float | None,
    lanes: int,
    wide: bool,
    packed: bool,
) -> None:
    loop = asyncio.get_running_loop()
    one = Bench(
        SMALL if small else LANE,
        most=most,
        most_rows=most_rows,
        wait=0.3,
        lanes=lanes,
        wide=WIDE if wide else None,
        packed=packed,
    )
    one.engine.guilty = one.wide.guilty = {number for number, caller in enumerate(schedule) if caller.guilty}
    answers: list[asyncio.Future[Done]] = []
    left: dict[int, float] = {}
    closing: asyncio.Future[None] | None = None

    def leave(number: int) -> None:
        if answers[number].cancel():
            left[number] = loop.time()

    def close() -> None:
        nonlocal closing
        closing = asyncio.ensure_future(one.scheduler.close())

    if closes is not None:
        loop.call_later(closes, close)
    for number, caller in enumerate(schedule):
        await asyncio.sleep(caller.pause)
        deadline = math.inf if caller.deadline is None else loop.time() + caller.deadline
        answers.append(
            one.submit(
                number,
                lengths=caller.lengths if packed else [caller.length] * caller.batch,
                priority=caller.priority,
                deadline=deadline,
                timeout=caller.timeout,
            )
        )
        if caller.leaves is not None:
            loop.call_later(caller.leaves, leave, number)
    # The clock is virtual: whoever would wait for ever makes the loop raise.
    results = await asyncio.gather(*answers, return_exceptions=True)
    if closes is None:
        await asyncio.sleep(100)  # callers may have left running batches
        # Nothing runs, so that it starts at once.
        await one.submit(len(schedule), batch=3, length=30, timeout=1e-6)
    elif closing is not None:
        await closing
    await one.scheduler.close()

    check_answers(schedule, results, one)
    check_batches(one, left)


async def test_both_sessions_take_part() -> None:
    one = Bench(LANE, lanes=2, wide=WIDE)
    await one.submit(0)
    await asyncio.gather(*(one.submit(number) for number in range(1, 30)))

    assert one.wide.runs[0] == [0]
    assert sum(map(len, one.engine.runs)) > 20


def check_answers(schedule: list[Caller], results: list[Done | BaseException], one: Any) -> None:
    """Each answer is one that this caller may get, and the counters add up to all of them."""
    outcomes: Counter[type] = Counter()
    for number, (caller, result) in enumerate(zip(schedule, results, strict=True)):
        outcomes[type(result)] += 1
        match result:
            case Done():
                assert not caller.guilty
                lengths = caller.lengths if one.signature.packed else [caller.length] * caller.batch
                exists = np.arange(caller.length) < np.array(lengths)[:, None]
                assert (result.outputs["y"] == np.where(exists, 2 * number, 0)).all()
            case asyncio.CancelledError():
                assert caller.leaves is not None
            case ExpiredError():
                assert caller.deadline is not None
            case EngineError():
                assert caller.guilty
            case _:
                assert isinstance(result, UnavailableError)
    drops = Counter(one.counter.drops)
    assert drops[Drop.CANCELLED] == outcomes[asyncio.CancelledError]
    assert drops[Drop.EXPIRED] <= outcomes[ExpiredError]
    assert drops.total() == len(schedule) - outcomes[Done] - outcomes[EngineError]
    assert sum(execution.requests for execution in one.counter.executions) >= outcomes[Done]
    assert one.scheduler.queued_tokens == 0


def check_batches(one: Any, left: dict[int, float]) -> None:
    """Nothing ran twice, too late, after its caller had left, or in too large a batch."""
    taken: set[Entry] = set()
    for time, entries in one.taken:
        rows = sum(entry.work.size.rows for entry in entries)
        longest = max(entry.work.size.longest for entry in entries)
        assert len(entries) == 1 or rows <= most_rows(longest)
        for entry in entries:
            number = int(entry.work.feeds["x"][0, 0])
            assert entry not in taken
            taken.add(entry)
            assert time < entry.work.deadline
            assert time < entry.start_by
            assert left.get(number, time) >= time
