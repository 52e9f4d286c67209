"""What runs together, when, and for whom, on a virtual clock."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.server.scheduling.conftest import BY_TOKENS, FLAT, Bench, Prices

from polyhead_server.errors import DeviceLostError, EngineError, ExpiredError, TooLargeError, UnavailableError
from polyhead_server.observability.statistics import Drop
from polyhead_server.scheduling import Done


async def test_what_gathers_during_a_run_is_the_next_batch() -> None:
    one = Bench(FLAT)
    first = one.submit(1)
    await asyncio.sleep(0.05)
    rest = [one.submit(number, length=number) for number in (2, 3, 4)]
    done = await asyncio.gather(first, *rest)

    assert one.engine.shapes == [(1, 1), (3, 4)]
    assert [answer.outputs["y"].tolist() for answer in done[1:]] == [
        [[2 * number] * number] for number in (2, 3, 4)
    ]
    assert [answer.batch for answer in done] == [1, 3, 3, 3]
    assert [execution.requests for execution in one.counter.executions] == [1, 3]
    assert [execution.padded_tokens for execution in one.counter.executions] == [1, 12]


async def test_a_lane_takes_what_waits_when_it_is_free() -> None:
    one = Bench(FLAT, lanes=2)
    first = one.submit(1)
    await asyncio.sleep(0.01)
    second = one.submit(2)
    await asyncio.sleep(0.01)
    rest = [one.submit(number) for number in range(3, 9)]
    await asyncio.gather(first, second, *rest)

    assert one.engine.runs == [[1], [2], [3, 4, 5, 6, 7, 8]]
    begun = [time for time, _ in one.taken]
    assert begun[1] == pytest.approx(begun[0] + 0.01)
    assert begun[2] == pytest.approx(begun[0] + 0.1, abs=0.001)


@pytest.mark.parametrize("packed", [False, True])
async def test_who_leaves_at_the_last_moment_is_no_part_of_the_run(packed: bool) -> None:
    """Before the event loop has heard of it, and after the batch has been chosen."""
    one = Bench(FLAT, inline=False, packed=packed)
    *stay, leaves = (one.submit(number, lengths=[length]) for number, length in enumerate((3, 5, 40), 1))
    leaves.cancel()
    batch = one.scheduler.take()
    assert batch is not None
    assert batch.size == one.planner.joint([entry.work.size for entry in batch.entries])

    one.scheduler.run(batch)

    assert [done.batch for done in await asyncio.gather(*stay)] == [2, 2]
    assert one.engine.shapes == [(2, 5)]


async def test_what_a_free_run_can_take_is_not_refused() -> None:
    one = Bench(BY_TOKENS, lanes=2)
    loop = asyncio.get_running_loop()
    long = one.submit(1, length=100)  # about a second
    await asyncio.sleep(0.01)
    short = one.submit(2, deadline=loop.time() + 0.02)
    await short

    await asyncio.sleep(0)
    also_long = one.submit(3, length=100)
    await asyncio.sleep(0.01)
    with pytest.raises(UnavailableError, match="busy for about"):
        await one.submit(4, deadline=loop.time() + 0.05)
    await asyncio.gather(long, also_long)


async def test_the_guilty_is_found_though_its_time_to_begin_has_passed() -> None:
    one = Bench(FLAT)
    one.engine.guilty.add(3)
    first = one.submit(0)
    await asyncio.sleep(0.01)
    # They begin in time, together; that they are run again comes later.
    together = [one.submit(number, timeout=0.15) for number in range(1, 5)]
    results = await asyncio.gather(first, *together, return_exceptions=True)

    assert [type(result) for result in results] == [Done, Done, Done, EngineError, Done]


async def test_the_highest_priority_goes_first_and_0_is_in_the_middle() -> None:
    one = Bench(BY_TOKENS)
    first = one.submit(0)
    await asyncio.sleep(0.005)
    order = {5: 1, 4: 2, 3: 3, 0: 4, 1: 5, 2: 6, 77: 7}
    await asyncio.gather(first, *(one.submit(n, priority=p) for p, n in order.items()))

    assert [runs[0] for runs in one.engine.runs] == [0, 5, 6, 3, 4, 7, 2, 1]


async def test_the_lowest_priority_is_slow_and_not_starved() -> None:
    one = Bench(BY_TOKENS)
    await asyncio.sleep(0)
    slow = one.submit(999, priority=5)
    fast = [one.submit(number, priority=1) for number in range(100)]
    await asyncio.gather(slow, *fast)

    assert one.engine.runs.index([999]) < 8


async def test_the_oldest_of_a_priority_is_never_passed_over() -> None:
    """Short requests keep coming, and would be cheaper to run together for ever."""
    one = Bench(FLAT, most=10**9)
    first = one.submit(0)
    await asyncio.sleep(0.01)
    long = one.submit(999, batch=256, length=1000)
    rest = [one.submit(number) for number in range(1, 200)]
    await asyncio.gather(first, long, *rest)

    assert 999 in one.engine.runs[1]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from([0.0, 0.0, 0.05]), st.sampled_from([1, 3, 5]), st.integers(1, 200)),
        max_size=60,
    ),
    lanes=st.sampled_from([1, 2]),
    attention=st.sampled_from([0.0, 1e-7, 1e-5]),
)
async def test_in_packed_graphs_nobody_overtakes_within_a_priority(
    arrivals: list[tuple[float, int, int]], lanes: int, attention: float
) -> None:
    one = Bench(Prices(0.01, 1e-4, attention), lanes=lanes, packed=True, inline=False)
    answers = []
    for number, (pause, priority, length) in enumerate(arrivals):
        await asyncio.sleep(pause)
        answers.append(one.submit(number, length=length, priority=priority))
    await asyncio.gather(*answers)

    taken = [entry.work for _, entries in one.taken for entry in entries]
    for level in (0, 2, 4):
        numbers = [int(work.feeds["x"][0, 0]) for work in taken if work.level == level]
        assert numbers == sorted(numbers)


# ---- Time ---------------------------------------------------------------------------------------


async def test_so_it_is_on_a_free_lane_and_not_behind_others() -> None:
    one = Bench(FLAT, lanes=2, inline=False)
    running = one.submit(0)
    await asyncio.sleep(0)
    beside = one.submit(1, timeout=1e-6)
    await asyncio.sleep(0)
    behind = one.submit(2, timeout=1e-6)
    results = await asyncio.gather(running, beside, behind, return_exceptions=True)

    assert [isinstance(result, UnavailableError) for result in results] == [False, False, True]


async def test_a_timeout_holds_while_a_large_request_waits_for_all_threads() -> None:
    one = Bench(FLAT, lanes=2, wide=FLAT, inline=False, most_rows=lambda _, at_once: 8 // at_once)
    running = one.submit(0)
    await asyncio.sleep(0)
    large = one.submit(1, batch=6, timeout=0.02)
    with pytest.raises(UnavailableError, match="longer than this request can wait"):
        await large
    patient = one.submit(2, batch=6, timeout=1.0)
    await asyncio.gather(running, patient)

    assert one.engine.runs + one.wide.runs == [[0], [2] * 6]


async def test_without_a_timeout_the_servers_own_counts() -> None:
    one = Bench(BY_TOKENS, wait=0.505)
    accepted = [one.submit(number) for number in range(100)]
    results = await asyncio.gather(*accepted, return_exceptions=True)

    assert sum(isinstance(result, UnavailableError) for result in results) == 49
    assert set(one.counter.drops) == {Drop.UNREACHABLE}


async def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    one = Bench(BY_TOKENS)
    loop = asyncio.get_running_loop()
    accepted = [one.submit(number) for number in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="busy for about 100 ms") as refused:
        await one.submit(deadline=loop.time() + 0.1)
    assert refused.value.retry_after_ms in range(25, 76)
    with pytest.raises(ExpiredError, match=r"leaves 5.0 ms, this request takes about 10.0 ms"):
        await one.submit(deadline=loop.time() + 0.005)
    accepted.append(one.submit(99, deadline=loop.time() + 0.2))
    accepted.append(one.submit(100, priority=1, deadline=loop.time() + 0.05))
    await asyncio.gather(*accepted)

    assert one.counter.drops == [Drop.UNREACHABLE] * 2


async def test_what_could_start_at_once_is_tried() -> None:
    """The estimate may be wrong."""
    one = Bench(BY_TOKENS)
    with pytest.raises(ExpiredError, match="before there was an answer"):
        await one.submit(deadline=asyncio.get_running_loop().time() + 0.005)

    await one.submit(2)
    assert one.engine.runs == [[1], [2]]
    assert one.counter.drops == [Drop.EXPIRED]


# ---- Failures ------------------------------------------------------------------------------------


async def test_only_the_guilty_one_of_a_batch_fails() -> None:
    one = Bench(FLAT)
    one.engine.guilty = {7, 12}
    first = one.submit(0)
    await asyncio.sleep(0.01)
    rest = [one.submit(number) for number in range(1, 17)]
    results = await asyncio.gather(first, *rest, return_exceptions=True)

    failed = [number for number, result in enumerate(results) if isinstance(result, EngineError)]
    assert failed == [7, 12]
    done = {n: r.outputs["y"].item() for n, r in enumerate(results) if not isinstance(r, BaseException)}
    assert done == {n: 2 * n for n in range(17) if n not in failed}
    assert len(one.engine.runs) <= 1 + 2 * 16 - 1


async def test_a_batch_that_needs_too_much_memory_is_halved() -> None:
    one = Bench(FLAT)
    one.engine.largest = 4
    first = one.submit(0)
    await asyncio.sleep(0.01)
    results = await asyncio.gather(
        first,
        *(one.submit(number) for number in range(8)),
        one.submit(9, length=5),
        return_exceptions=True,
    )

    assert isinstance(results[-1], TooLargeError)
    assert not any(isinstance(result, Exception) for result in results[:-1])


async def test_without_a_device_nothing_is_tried_again() -> None:
    one = Bench(FLAT)
    first = one.submit(0)
    await asyncio.sleep(0.01)
    rest = [one.submit(number) for number in range(1, 9)]
    await first
    one.engine.lost = True
    ran = len(one.engine.runs)
    results = await asyncio.gather(*rest, return_exceptions=True)

    lost = sum(isinstance(result, DeviceLostError) for result in results)
    assert lost >= 1
    assert len(one.engine.runs) - ran <= 1


# ---- The end ------------------------------------------------------------------------------------


async def test_closing_rejects_what_waits_and_what_comes() -> None:
    one = Bench(BY_TOKENS)
    waiting = [one.submit(number) for number in range(5)]
    closing = asyncio.ensure_future(one.scheduler.close())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="being closed"):
        await one.submit(9)
    await closing
    with pytest.raises(UnavailableError, match="being closed"):
        await one.submit(10)

    for answer in waiting:
        with pytest.raises(UnavailableError, match="being closed"):
            answer.result()
    assert one.engine.stopped


async def test_gauges_follow_the_queue() -> None:
    one = Bench(BY_TOKENS)
    scheduler = one.scheduler
    waiting = [one.submit(number, length=2) for number in range(5)]
    await asyncio.sleep(0.001)

    assert scheduler.queued_tokens == 8
    waiting[3].cancel()
    await asyncio.sleep(0)
    assert scheduler.queued_tokens == 6  # so that there is room for others
    await asyncio.gather(*waiting, return_exceptions=True)
    assert scheduler.queued_tokens == 0
