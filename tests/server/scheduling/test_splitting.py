"""Requests of several sequences run in parts, side by side, and are answered as if they had not."""

import asyncio
import gc

import numpy as np
import pytest
from tests.server.scheduling.conftest import Bench, Prices

from polyhead_server.errors import EngineError, UnavailableError
from polyhead_server.observability.statistics import Drop

LANE = Prices(0.01, token=0.001, attention=1e-5)
WIDE = Prices(0.01, token=0.0006, attention=0.6e-5)
RAGGED = [3, 30, 4, 29, 2, 31, 5, 28]


async def test_sequences_of_like_length_run_together_in_every_lane() -> None:
    one = Bench(LANE, lanes=2, wide=WIDE, packed=True)

    done = await one.submit(7, lengths=RAGGED)

    exists = np.arange(31) < np.array(RAGGED)[:, None]
    assert (done.outputs["y"] == np.where(exists, 14, 0)).all()
    assert not one.wide.runs
    assert sum(rows for rows, _ in one.engine.shapes) == len(RAGGED)
    assert {time for time, _ in one.taken[:2]} == {1000.0}
    assert all(longest <= 5 or longest >= 28 for _, longest in one.engine.shapes)


@pytest.mark.parametrize("lengths", [[9, 2], [30], [1, 9, 2]])
async def test_a_request_stays_whole_where_all_threads_are_sooner(lengths: list[int]) -> None:
    one = Bench(LANE, lanes=2, wide=WIDE, packed=True)

    await one.submit(lengths=lengths)

    assert one.wide.shapes == [(len(lengths), max(lengths))]


@pytest.mark.parametrize("lengths", [[10] * 21, list(range(1, 23)), [60, *[9] * 22]])
async def test_no_lane_is_idle_while_the_last_piece_runs(lengths: list[int]) -> None:
    costs = Prices(0.001, token=0.001)
    one = Bench(costs, lanes=2, wide=Prices(0.001, token=0.0009), packed=True)
    begun = asyncio.get_running_loop().time()

    await one.submit(lengths=lengths)  # takes each lane a little more than a turn

    assert asyncio.get_running_loop().time() - begun < 1.12 * 0.001 * sum(lengths) / 2
    assert not one.wide.runs


async def test_others_pass_between_the_pieces_of_a_long_request() -> None:
    costs = Prices(0.001, token=0.001, attention=1e-5)
    one = Bench(costs, lanes=2, wide=WIDE, packed=True, inline=False, wait=10.0)
    loop = asyncio.get_running_loop()
    long = one.submit(1, lengths=[30] * 200)  # about 4 s
    also_long = one.submit(2, lengths=[30] * 20)
    await asyncio.sleep(0.7)
    waited = []
    for number in range(3, 9):
        begun = loop.time()
        await one.submit(number)
        waited.append(loop.time() - begun)
        await asyncio.sleep(0.13)

    assert max(waited) < 0.2  # two pieces, where the oldest of all had its turn
    assert not also_long.done()
    await asyncio.gather(long, also_long)
    numbers = [run[0] for run in one.engine.runs if run[0] < 3]
    assert numbers.index(2) < 8
    assert numbers[8:].index(2) > 0.8 * numbers.count(1)
    assert not one.wide.runs


async def test_a_long_request_goes_on_where_others_never_end() -> None:
    one = Bench(LANE, lanes=1, packed=True, inline=False)
    long = one.submit(1, lengths=[60] * 30)
    others = [one.submit(2, lengths=[60]) for _ in range(5)]
    for _ in range(500):
        if long.done():
            break
        others.append(one.submit(2, lengths=[60]))
        await others.pop(0)

    assert long.done()
    numbers = [run[0] for run in one.engine.runs]
    assert 2 < numbers.count(1) < numbers.count(2)
    await asyncio.gather(long, *others)


async def test_graphs_that_compute_padding_run_requests_whole() -> None:
    one = Bench(LANE, lanes=2, wide=WIDE)

    await one.submit(batch=8, length=30)

    assert len(one.engine.runs) + len(one.wide.runs) == 1


async def test_a_sequence_without_tokens_runs_as_one_token() -> None:
    one = Bench(LANE, lanes=2, packed=True)

    done = await one.submit(3, lengths=[20, 0, 20, 0])

    assert (done.outputs["y"].sum(axis=1) == [120, 0, 120, 0]).all()


async def test_a_part_that_fails_fails_the_request_once() -> None:
    one = Bench(LANE, lanes=2, packed=True)
    one.engine.guilty = {5}
    request, other = one.submit(5, lengths=RAGGED), one.submit(6, lengths=RAGGED)

    with pytest.raises(EngineError, match="guilty"):
        await request
    assert (await other).outputs["y"].max() == 12

    assert one.counter.drops == []
    assert one.scheduler.queued_tokens == 0


async def test_who_leaves_is_counted_once_and_no_part_runs_any_more() -> None:
    one = Bench(LANE, lanes=1, packed=True)
    first = one.submit(1, lengths=[40])
    request = one.submit(2, lengths=RAGGED)
    await asyncio.sleep(0)
    request.cancel()
    await first
    await asyncio.sleep(100)

    assert one.counter.drops == [Drop.CANCELLED]
    assert one.engine.runs == [[1]]


async def test_parts_that_wait_too_long_are_one_request_that_did() -> None:
    one = Bench(Prices(1.0, token=1e-7), lanes=1, packed=True, most_rows=lambda _longest, _at_once: 2)
    running = one.submit(1)
    request = one.submit(2, lengths=[9] * 8, timeout=0.5)

    with pytest.raises(UnavailableError, match="waited for its turn"):
        await request
    await running

    assert one.counter.drops == [Drop.TIMEOUT]


async def test_a_scheduler_that_closes_rejects_a_request_in_parts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Bench(LANE, lanes=1, packed=True, most_rows=lambda _longest, _at_once: 2)
    running = one.submit(1, lengths=[40])
    request = one.submit(2, lengths=RAGGED)
    await asyncio.sleep(0)
    await one.scheduler.close()

    with pytest.raises(UnavailableError, match="being closed"):
        await request
    with pytest.raises(UnavailableError, match="being closed"):
        await running
    assert one.counter.drops == [Drop.STOPPING] * 2
    del request, running
    gc.collect()
    assert not caplog.records  # of errors that no one has read
