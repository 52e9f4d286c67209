"""One thread for each of several runs where that gets more done, all threads for one where it does not."""

from collections.abc import Sequence

import pytest

from polyhead_server.engine.engine import Arrays
from polyhead_server.scheduling import CostTable, SingleThreadSession
from polyhead_server.scheduling.dispatch import Dispatch


class Idle:
    """An engine that nothing is asked of."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        raise AssertionError("nothing runs here")

    def stop(self) -> None:
        """Nothing runs."""


WIDE, ONE = Idle(), Idle()


def by_tokens(seconds: float, gain: float) -> CostTable:
    """So many seconds a token, whatever they are cut into."""
    points = {(batch, tokens): seconds * batch * tokens for batch in (1, 64) for tokens in (1, 128)}
    return CostTable(points, gains={1: gain})


def dispatch(
    *, alone: float, gain: float = 1.9, shared: float = 1.0, runs: int = 2, most: int = 2
) -> Dispatch:
    """Dispatch to run 10 ms a token.

    Args:
        alone: How much longer a run takes with one thread.
        gain: What so many at once gain with one thread each, over one of these after the other.
        shared: And with all threads for each.
        runs: How many at once with all threads.
        most: How many at once with one thread each.
    """
    single_thread = SingleThreadSession(engine=ONE, costs=by_tokens(0.01 * alone, gain / alone), runs=most)
    return Dispatch(WIDE, by_tokens(0.01, shared), runs=runs, single_thread=single_thread)


def test_a_lone_request_gets_all_threads() -> None:
    decision = dispatch(alone=1.6).next([(1, 10)], running=0)

    assert decision is not None
    batch, route = decision
    assert batch == [0]
    assert route.engine is WIDE
    assert route.seconds((1, 10)) == pytest.approx(0.1)


@pytest.mark.parametrize(("requests", "running"), [([(1, 10)] * 2, 0), ([(1, 10)], 1), ([(1, 10)] * 9, 1)])
def test_requests_at_once_get_a_thread_each(requests: list[tuple[int, int]], running: int) -> None:
    decision = dispatch(alone=1.6).next(requests, running)

    assert decision is not None
    batch, route = decision
    assert batch == [0]
    assert route.engine is ONE
    assert route.seconds((1, 10)) == pytest.approx(0.16 * 2 / 1.9)


@pytest.mark.parametrize(
    ("alone", "gain", "shared"),
    [
        (2.2, 1.9, 1.0),  # one thread is too slow
        (1.6, 1.4, 1.0),  # caches are too small for two
        (1.6, 1.9, 1.2),  # runs that share all threads gain more
    ],
)
def test_all_threads_are_shared_where_that_is_better(alone: float, gain: float, shared: float) -> None:
    decision = dispatch(alone=alone, gain=gain, shared=shared).next([(1, 10)] * 4, 0)

    assert decision is not None
    assert decision[1].engine is WIDE


def test_a_thread_each_need_not_gain_as_all_threads_wait_for_the_one_that_is_interrupted() -> None:
    decision = dispatch(alone=1.95, gain=1.85).next([(1, 10)] * 4, 0)

    assert decision is not None
    assert decision[1].engine is ONE
    assert decision[1].seconds((1, 10)) == pytest.approx(0.195 * 2 / 1.85)


def test_nothing_starts_where_it_would_be_in_the_way() -> None:
    worse = dispatch(alone=1.95, gain=1.5)

    assert worse.next([(1, 10)] * 4, 1) is None
    assert dispatch(alone=1.6).next([(1, 10)] * 4, 2) is None
    assert dispatch(alone=1.6).most_runs == 2


def test_of_four_threads_two_runs_take_only_two() -> None:
    four = dispatch(alone=3.2, gain=3.9, most=4)
    few, many = four.next([(1, 10)] * 2, 0), four.next([(1, 10)] * 4, 0)

    assert four.most_runs == 4
    assert few is not None
    assert many is not None
    assert few[1].engine is WIDE
    assert many[1].engine is ONE


def test_short_work_that_many_threads_hardly_help_gets_one() -> None:
    engines = []
    for seconds in (0.0001, 0.001):  # a token
        single_thread = SingleThreadSession(engine=ONE, costs=by_tokens(1.4 * seconds, 1.0))
        decision = Dispatch(WIDE, by_tokens(seconds, 1.0), runs=2, single_thread=single_thread).next(
            [(1, 10)], 0
        )
        assert decision is not None
        engines.append(decision[1].engine)

    assert engines == [ONE, WIDE]  # if it is short: what takes long is worth any threads that help


def test_lengths_that_were_not_measured_with_one_thread_get_all() -> None:
    decision = dispatch(alone=1.6).next([(1, 129)] * 2, 0)

    assert decision is not None
    assert decision[1].engine is WIDE


def test_batches_for_one_thread_are_those_that_one_thread_gains_from() -> None:
    flat = CostTable({(1, 1): 0.016, (64, 1): 0.017, (1, 128): 0.016, (64, 128): 0.017}, gains={1: 1.9})
    both = Dispatch(
        WIDE, by_tokens(0.01, 1.0), runs=2, single_thread=SingleThreadSession(engine=ONE, costs=flat, runs=2)
    )
    decision = both.next([(1, 10)] * 6, 1)

    assert decision is not None
    assert sorted(decision[0]) == [0, 1, 2, 3, 4, 5]
    assert decision[1].engine is ONE


def test_without_a_second_session_runs_share_threads_where_that_gains() -> None:
    gains, loses = (Dispatch(WIDE, by_tokens(0.01, gain), runs=2, single_thread=None) for gain in (1.5, 1.0))

    assert loses.next([(1, 10)], 1) is None
    decision = gains.next([(1, 10)], 1)
    assert decision is not None
    assert decision[1].seconds((1, 10)) == pytest.approx(0.2)
    assert gains.next([(1, 10)], 2) is None


def test_what_a_request_adds_to_the_work_is_counted_the_best_way() -> None:
    assert dispatch(alone=1.6).share((1, 10)) == pytest.approx(0.16 / 1.9)
    assert dispatch(alone=1.6, gain=1.2).share((1, 10)) == pytest.approx(0.1)
    assert dispatch(alone=1.6).share((1, 200)) == pytest.approx(2.0)  # longer than what was measured
