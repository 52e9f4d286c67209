"""Small work runs on the event loop, one batch a turn."""

import asyncio
import itertools
from typing import Any

import pytest

from polyhead_server.errors import EngineError, ExpiredError, UnavailableError
from polyhead_server.scheduling import Drop


def test_requests_of_one_turn_are_one_batch(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        done = await asyncio.gather(*(one.submit(number) for number in range(5)))
        again = await one.submit(7)

        assert one.engine.runs == [[0, 1, 2, 3, 4], [7]]
        assert [answer.outputs["y"].item() for answer in done] == [0, 2, 4, 6, 8]
        assert again.outputs["y"].item() == 14
        assert not one.scheduler._started

    virtually(test())


def test_larger_work_goes_to_the_thread(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        await asyncio.gather(one.submit(1, batch=128), one.submit(2))

        assert one.engine.runs == [[2], [1] * 128]

    virtually(test())


def test_where_the_loop_must_not_wait_all_goes_to_the_thread(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY, inline=False)
        done = await one.submit(3)

        assert done.outputs["y"].item() == 6
        assert one.scheduler._started

    virtually(test())


def test_a_turn_is_bounded(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        answers = [one.submit(number) for number in range(1000)]
        assert one.scheduler.queued_tokens == 1000
        turn()
        await asyncio.gather(*answers)

        assert turns >= 10
        assert max(len(numbers) for numbers in one.engine.runs) <= 100
        assert one.scheduler.queued_tokens == 0

    virtually(test())


def test_the_queues_limit_counts_small_work_too(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY, most=3)
        answers = [one.submit(number) for number in range(3)]
        with pytest.raises(UnavailableError, match="queue is full"):
            await one.submit(4)
        await asyncio.gather(*answers)

        assert one.counter.drops == [Drop.QUEUE_FULL]

    virtually(test())


def test_who_left_or_is_late_is_not_run(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        answers = [one.submit(number) for number in range(3)]
        late = one.submit(9, deadline=asyncio.get_running_loop().time())
        answers[1].cancel()
        results = await asyncio.gather(*answers, late, return_exceptions=True)

        assert one.engine.runs == [[0, 2]]
        assert isinstance(results[1], asyncio.CancelledError)
        assert isinstance(results[3], ExpiredError)
        assert sorted(one.counter.drops) == [Drop.CANCELLED, Drop.EXPIRED]

    virtually(test())


def test_a_timeout_counts_from_when_others_go_first(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        first = [one.submit(number, timeout=1e-9) for number in range(3)]
        rest = [one.submit(number) for number in range(3, 300)]
        impatient = one.submit(300, timeout=1e-9)
        results = await asyncio.gather(*first, *rest, impatient, return_exceptions=True)

        assert len(one.engine.runs) > 1
        assert sorted(itertools.chain(*one.engine.runs)) == list(range(300))
        assert isinstance(results[-1], UnavailableError)
        assert one.counter.drops == [Drop.TIMEOUT]

    virtually(test())


def test_a_failure_is_its_own(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        one.engine.guilty = {2}
        results = await asyncio.gather(*(one.submit(number) for number in range(5)), return_exceptions=True)

        assert [isinstance(result, EngineError) for result in results] == [False, False, True, False, False]

    virtually(test())


def test_closing_answers_everyone(bench: Any, virtually: Any) -> None:
    async def test() -> None:
        one = bench(bench.TINY)
        answers = [one.submit(number) for number in range(5)]
        answers[0].cancel()
        await one.scheduler.close()
        results = await asyncio.gather(*answers[1:], return_exceptions=True)

        assert all(isinstance(result, UnavailableError) for result in results)
        assert one.counter.drops.count(Drop.CANCELLED) == 1
        assert one.scheduler.queued_tokens == 0

    virtually(test())
