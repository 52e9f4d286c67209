"""What runs together, when, and for whom, on a virtual clock."""

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.server.scheduling.conftest import Prices

from polyhead_server.errors import DeviceLostError, EngineError, ExpiredError, TooLargeError, UnavailableError
from polyhead_server.observability.observer import Drop
from polyhead_server.scheduling import Done


def test_what_gathers_during_a_run_is_the_next_batch(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
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

    virtually(test())


def test_nothing_waits_for_company(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
        loop = asyncio.get_running_loop()
        before = loop.time()
        await one.submit()

        assert loop.time() - before == pytest.approx(0.1)

    virtually(test())


def test_a_lane_takes_what_waits_when_it_is_free(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT, lanes=2)
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

    virtually(test())


def test_free_lanes_divide_what_waits(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT, lanes=4)
        await asyncio.gather(*(one.submit(number) for number in range(8)))

        assert sorted(map(len, one.engine.runs)) == [2, 2, 2, 2]
        assert len({time for time, _ in one.taken}) == 1

    virtually(test())


def test_a_lone_request_gets_all_threads_after_what_runs_if_that_is_sooner(
    bench: Any, virtually: Any
) -> None:
    async def test() -> None:
        lane, wide = Prices(0.01, token=0.01), Prices(0.01, token=0.002)
        one = bench(lane, lanes=8, wide=wide)
        answers = [one.submit(1, length=100)]  # 0.21 s with all threads, 1.01 s with one
        await asyncio.sleep(0.01)
        answers.append(one.submit(2, length=100))
        await asyncio.sleep(0.01)
        answers.append(one.submit(3, length=1))  # 0.02 s with one
        await asyncio.gather(*answers)

        begun = {int(entries[0].work.feeds["x"][0, 0]): time for time, entries in one.taken}
        assert begun[2] == pytest.approx(begun[1] + 0.21)

    virtually(test())


def test_what_a_free_run_can_take_is_not_refused(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS, lanes=2)
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

    virtually(test())


def test_the_guilty_is_found_though_its_time_to_begin_has_passed(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
        one.engine.guilty.add(3)
        first = one.submit(0)
        await asyncio.sleep(0.01)
        # They begin in time, together; that they are run again comes later.
        together = [one.submit(number, timeout=0.15) for number in range(1, 5)]
        results = await asyncio.gather(first, *together, return_exceptions=True)

        assert [type(result) for result in results] == [Done, Done, Done, EngineError, Done]

    virtually(test())


def test_requests_of_several_sequences_take_part(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
        first = one.submit()
        await asyncio.sleep(0.05)
        done = await asyncio.gather(first, one.submit(2, batch=3, length=2), one.submit(3, batch=2))

        assert one.engine.shapes == [(1, 1), (5, 2)]
        assert done[1].outputs["y"].shape == (3, 2)
        assert done[2].outputs["y"].shape == (2, 1)

    virtually(test())


def test_the_highest_priority_goes_first_and_0_is_in_the_middle(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS)
        first = one.submit(0)
        await asyncio.sleep(0.005)
        order = {5: 1, 4: 2, 3: 3, 0: 4, 1: 5, 2: 6, 77: 7}
        await asyncio.gather(first, *(one.submit(n, priority=p) for p, n in order.items()))

        assert [runs[0] for runs in one.engine.runs] == [0, 5, 6, 3, 4, 7, 2, 1]

    virtually(test())


def test_the_lowest_priority_is_slow_and_not_starved(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS)
        await asyncio.sleep(0)
        slow = one.submit(999, priority=5)
        fast = [one.submit(number, priority=1) for number in range(100)]
        await asyncio.gather(slow, *fast)

        assert one.engine.runs.index([999]) < 8

    virtually(test())


def test_the_oldest_of_a_priority_is_never_passed_over(bench: Any, virtually: Any) -> None:
    """Short requests keep coming, and would be cheaper to run together for ever."""

    async def test() -> None:
        one = bench(bench.FLAT, most=10**9)
        first = one.submit(0)
        await asyncio.sleep(0.01)
        long = one.submit(999, batch=256, length=1000)
        rest = [one.submit(number) for number in range(1, 200)]
        await asyncio.gather(first, long, *rest)

        assert 999 in one.engine.runs[1]

    virtually(test())


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from([0.0, 0.0, 0.05]), st.sampled_from([1, 3, 5]), st.integers(1, 200)),
        max_size=60,
    ),
    lanes=st.sampled_from([1, 2]),
    attention=st.sampled_from([0.0, 1e-7, 1e-5]),
)
def test_in_packed_graphs_nobody_overtakes_within_a_priority(
    bench: Any, virtually: Any, arrivals: list[tuple[float, int, int]], lanes: int, attention: float
) -> None:
    async def test() -> None:
        one = bench(Prices(0.01, 1e-4, attention), lanes=lanes, packed=True, inline=False)
        answers = []
        for number, (pause, priority, length) in enumerate(arrivals):
            await asyncio.sleep(pause)
            answers.append(one.submit(number, length=length, priority=priority))
        await asyncio.gather(*answers)

        taken = [entry.work for _, entries in one.taken for entry in entries]
        for priority in (1, 3, 5):
            numbers = [int(work.feeds["x"][0, 0]) for work in taken if work.priority == priority]
            assert numbers == sorted(numbers)

    virtually(test())


# ---- Time ---------------------------------------------------------------------------------------


def test_work_that_waits_longer_than_its_timeout_is_rejected(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
        loop = asyncio.get_running_loop()
        running = one.submit()
        await asyncio.sleep(0)
        begun = loop.time()
        for batch in one.scheduler._running:
            batch.ends = 0.0  # as if the estimate had been short
        with pytest.raises(UnavailableError, match="waited for its turn longer"):
            await one.submit(2, timeout=0.02)

        assert loop.time() - begun == pytest.approx(0.02)
        await running
        assert one.engine.runs == [[1]]
        assert one.counter.drops == [Drop.TIMEOUT]

    virtually(test())


def test_a_timeout_is_only_for_the_queue(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
        await one.submit(timeout=0.02)

        assert one.counter.drops == []

    virtually(test())


@pytest.mark.parametrize("inline", [False, True])
def test_what_starts_at_once_does_not_wait_however_short_its_timeout(
    bench: Any, virtually: Any, inline: bool
) -> None:
    async def test() -> None:
        one = bench(bench.TINY if inline else bench.FLAT)
        for number in range(3):
            await one.submit(number, timeout=1e-6)

        assert one.engine.runs == [[0], [1], [2]]
        assert one.counter.drops == []

    virtually(test())


def test_so_it_is_on_a_free_lane_and_not_behind_others(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT, lanes=2, inline=False)
        running = one.submit(0)
        await asyncio.sleep(0)
        beside = one.submit(1, timeout=1e-6)
        await asyncio.sleep(0)
        behind = one.submit(2, timeout=1e-6)
        results = await asyncio.gather(running, beside, behind, return_exceptions=True)

        assert [isinstance(result, UnavailableError) for result in results] == [False, False, True]

    virtually(test())


def test_a_timeout_holds_while_a_large_request_waits_for_all_threads(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(
            bench.FLAT, lanes=2, wide=bench.FLAT, inline=False, most_rows=lambda _, at_once: 8 // at_once
        )
        running = one.submit(0)
        await asyncio.sleep(0)
        large = one.submit(1, batch=6, timeout=0.02)
        with pytest.raises(UnavailableError, match="longer than this request can wait"):
            await large
        patient = one.submit(2, batch=6, timeout=1.0)
        await asyncio.gather(running, patient)

        assert one.engine.runs + one.wide.runs == [[0], [2] * 6]

    virtually(test())


def test_without_a_timeout_the_servers_own_counts(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS, wait=0.505)
        accepted = [one.submit(number) for number in range(100)]
        results = await asyncio.gather(*accepted, return_exceptions=True)

        assert sum(isinstance(result, UnavailableError) for result in results) == 49
        assert set(one.counter.drops) == {Drop.UNREACHABLE}

    virtually(test())


def test_a_deadline_that_cannot_be_met_is_refused_at_once(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS)
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

    virtually(test())


def test_what_could_start_at_once_is_tried(bench: Any, virtually: Any) -> None:
    """The estimate may be wrong."""

    async def test() -> None:
        one = bench(bench.BY_TOKENS)
        with pytest.raises(ExpiredError, match="before there was an answer"):
            await one.submit(deadline=asyncio.get_running_loop().time() + 0.005)

        await one.submit(2)
        assert one.engine.runs == [[1], [2]]
        assert one.counter.drops == [Drop.EXPIRED]

    virtually(test())


def test_a_passed_deadline_is_refused(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS)
        with pytest.raises(ExpiredError, match="deadline passed before the request was read"):
            await one.submit(deadline=asyncio.get_running_loop().time())

        assert one.engine.runs == []

    virtually(test())


# ---- Failures ------------------------------------------------------------------------------------


def test_only_the_guilty_one_of_a_batch_fails(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
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

    virtually(test())


def test_a_batch_that_needs_too_much_memory_is_halved(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
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

    virtually(test())


def test_without_a_device_nothing_is_tried_again(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
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

    virtually(test())


def test_who_has_left_meanwhile_is_not_run_again(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.FLAT)
        one.engine.guilty = {1}
        first = one.submit(0)
        await asyncio.sleep(0.01)
        rest = [one.submit(number) for number in (1, 2, 3, 4)]
        await first
        await asyncio.sleep(0.01)
        rest[2].cancel()
        await asyncio.gather(*rest, return_exceptions=True)

        assert sum(3 in numbers for numbers in one.engine.runs) == 1
        assert one.counter.drops == [Drop.CANCELLED]

    virtually(test())


# ---- The end ------------------------------------------------------------------------------------


def test_closing_rejects_what_waits_and_what_comes(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS)
        waiting = [one.submit(number) for number in range(5)]
        closing = asyncio.ensure_future(one.scheduler.close())
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="being closed"):
            await one.submit(9)
        await closing

        for answer in waiting:
            with pytest.raises(UnavailableError, match="being closed"):
                answer.result()
        assert one.engine.stopped

    virtually(test())


def test_gauges_follow_the_queue(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.BY_TOKENS)
        scheduler = one.scheduler
        waiting = [one.submit(number, length=2) for number in range(5)]
        await asyncio.sleep(0.001)

        assert scheduler.queued_tokens == 8
        waiting[3].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert scheduler.queued_tokens == 0

    virtually(test())
