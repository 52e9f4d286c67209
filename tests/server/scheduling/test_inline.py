"""Small work runs on the event loop, one batch for all that a few turns bring."""

import asyncio
import itertools
from typing import Any

import pytest
from tests.server.scheduling.conftest import TINY, Bench, Prices, VirtualLoop

from polyhead_server.errors import EngineError, ExpiredError
from polyhead_server.observability.statistics import Drop
from polyhead_server.scheduling import Iterations


async def test_requests_of_one_turn_are_one_batch() -> None:
    one = Bench(TINY)
    done = await asyncio.gather(*(one.submit(number) for number in range(5)))
    again = await one.submit(7)

    assert one.engine.runs == [[0, 1, 2, 3, 4], [7]]
    assert [answer.outputs["y"].item() for answer in done] == [0, 2, 4, 6, 8]
    assert again.outputs["y"].item() == 14
    assert not one.scheduler._started


async def turn() -> None:
    """Returns in the next turn of the event loop."""
    await asyncio.sleep(0)


async def test_requests_of_a_few_turns_are_one_batch() -> None:
    one = Bench(TINY)
    answers = []
    for number in range(5):
        answers.append(one.submit(number))
        for _ in range(14):
            await turn()
    await asyncio.gather(*answers)

    assert one.engine.runs == [[0, 1, 2, 3, 4]]


async def test_turns_that_bring_nothing_end_the_wait() -> None:
    one = Bench(TINY)
    answer = one.submit(0)
    for _ in range(14):
        await turn()
    assert one.engine.runs == []
    await turn()
    assert one.engine.runs == [[0]]

    assert (await answer).outputs["y"].item() == 0
    await one.submit(1)
    assert one.engine.runs == [[0], [1]]


async def turns_until_run(one: Bench, number: int) -> int:
    """Submits a request; how many turns pass until it runs."""
    before = len(one.engine.runs)
    answer = one.submit(number)
    turns = 0
    while len(one.engine.runs) == before:
        await turn()
        turns += 1
    await answer
    return turns


async def test_requests_that_come_alone_wait_seldom() -> None:
    one = Bench(TINY)

    assert [await turns_until_run(one, number) for number in range(24)] == [
        *[15] * 9,
        *[0] * 7,
        15,
        *[0] * 7,
    ]

    await asyncio.gather(one.submit(24), one.submit(25))
    assert await turns_until_run(one, 26) == 15


async def test_the_first_waits_for_a_millisecond_at_most() -> None:
    """However often others come."""
    one = Bench(TINY)
    answers = [one.submit(0)]
    for number in range(1, 5):
        await turn()
        answers.append(one.submit(number))
    assert one.engine.runs == []
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.skip(0.001)
    await turn()
    assert one.engine.runs == [[0, 1, 2, 3, 4]]
    await asyncio.gather(*answers)


async def test_what_fills_a_turn_waits_for_no_more() -> None:
    one = Bench(TINY)
    answers = [one.submit(number) for number in range(200)]
    await turn()
    assert one.engine.runs

    await asyncio.gather(*answers)


@pytest.mark.parametrize(("lanes", "most"), [(1, 1.5), (2, 0.75), (4, 0.375), (8, 0.3), (64, 0.3)])
async def test_larger_work_goes_to_the_threads(lanes: int, most: float) -> None:
    """Each sequence takes 10 µs."""
    one = Bench(Prices(0.0, token=1e-5), lanes=lanes)
    await one.submit(batch=int(100 * most) - 1)
    assert not one.scheduler._started
    await one.submit(batch=int(100 * most) + 1)
    assert one.scheduler._started


async def test_work_that_seems_a_little_too_large_is_tried_again() -> None:
    """Each takes 1 ms by an estimate that only runs here correct."""
    one = Bench(Prices(0.0, token=1e-3), lanes=2)
    for number in range(16):
        await one.submit(number)

    assert len(one.engine.runs) == 16
    assert len(one.taken) == 14


async def test_work_that_is_not_small_stays_on_the_loop_only_if_it_need_not_wait() -> None:
    """So the lanes get what one iteration cannot do, and small work waits for one iteration at most."""
    one = Bench(Prices(1e-5, token=4.8e-4), lanes=2)
    answers = [one.submit(number) for number in range(8)]
    await asyncio.gather(*answers)

    assert [0, 1, 2] in one.engine.runs
    assert sorted(number for _, entries in one.taken for number in numbers_of(entries)) == [3, 4, 5, 6, 7]


def numbers_of(entries: list[Any]) -> list[int]:
    return [int(entry.work.feeds["x"].flat[0]) for entry in entries]


async def test_all_models_share_an_iteration() -> None:
    """Eight models are flooded: 1.5 ms of their work run in each iteration, and every model has its turn."""
    shared = Iterations()
    models = [Bench(TINY, iterations=shared) for _ in range(8)]
    turns: list[list[int]] = []
    done: list[int] = []

    def count() -> None:
        turns.append([len(model.engine.runs) for model in models if model.scheduler.queued_tokens])
        done.append(sum(len(run) for model in models for run in model.engine.runs))
        asyncio.get_running_loop().call_soon(count)

    answers = [model.submit(number) for number in range(200) for model in models]
    count()
    await asyncio.gather(*answers)

    assert max(after - before for before, after in itertools.pairwise(done)) <= 1.5e-3 / 1.4e-5
    assert all(max(each, default=0) - min(each, default=0) <= 1 for each in turns)
    assert shared.seconds < 1e-4


async def test_a_fault_after_a_run_does_not_stop_other_models(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = Iterations()
    costs = Prices(8.6e-5, token=1.4e-5)
    monkeypatch.setattr(costs, "observe", None)
    broken, sound = Bench(costs, iterations=shared), Bench(TINY, iterations=shared)
    first, answer = broken.submit(1), sound.submit(2)

    with pytest.raises(EngineError, match="the scheduler of tiny failed"):
        await first
    assert (await answer).outputs["y"].item() == 4
    assert (await sound.submit(3)).outputs["y"].item() == 6
    with pytest.raises(EngineError, match="the scheduler of tiny failed"):
        await broken.submit(4)
    assert caplog.text.count("a batch of tiny failed outside its engine") == 2


async def test_who_left_or_is_late_is_not_run() -> None:
    one = Bench(TINY)
    answers = [one.submit(number) for number in range(3)]
    late = one.submit(9, deadline=asyncio.get_running_loop().time())
    answers[1].cancel()
    results = await asyncio.gather(*answers, late, return_exceptions=True)

    assert one.engine.runs == [[0, 2]]
    assert isinstance(results[1], asyncio.CancelledError)
    assert isinstance(results[3], ExpiredError)
    assert sorted(one.counter.drops) == [Drop.CANCELLED, Drop.EXPIRED]
