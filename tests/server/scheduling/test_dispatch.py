"""Lanes share what waits; all threads take a lone request where that is sooner."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.server.scheduling.conftest import Prices

from polyhead_server.engine.engine import Arrays
from polyhead_server.scheduling import Lanes, Planner, Size
from polyhead_server.scheduling.dispatch import Dispatch


class Idle:
    """An engine that does not run."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        raise AssertionError("nothing runs here")

    def stop(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


WIDE, LANE = Idle(), Idle()
SECONDS = 0.01
"""Of a token with one thread."""


def dispatch(count: int = 2, *, speedup: float = 1.6, most_rows: int = 256, wide: bool = True) -> Dispatch:
    """Dispatch to lanes that take 10 ms a token.

    Args:
        count: How many lanes there are.
        speedup: How much sooner a run ends with all threads.
        most_rows: The largest B.
        wide: Whether there is a session whose runs have all threads.
    """
    return Dispatch(
        Lanes(engine=LANE, costs=Prices(1e-5, token=SECONDS), count=count),
        wide=Lanes(engine=WIDE, costs=Prices(1e-5, token=SECONDS / speedup)) if wide else None,
        planner=Planner(most_rows=lambda _, at_once: most_rows // at_once),
    )


def test_a_lone_request_goes_to_one_thread_where_that_is_sooner_but_all_threads_are_tried_again() -> None:
    slow = dispatch(speedup=0.9)
    decisions = [slow.next([Size.full(1, 10)], 0, 0.0) for _ in range(16)]

    assert [decision is not None and decision[1].engine is LANE for decision in decisions].count(True) == 14


@pytest.mark.parametrize(
    ("requests", "running"),
    [([Size.full(1, 10)] * 2, 0), ([Size.full(1, 10)], 1), ([Size.full(1, 10)] * 9, 1)],
)
def test_work_for_every_lane_goes_to_lanes(requests: list[Size], running: int) -> None:
    decision: Any = dispatch().next(requests, running, 0.01)

    assert decision[1].engine is LANE
    assert 0 in decision[0][0]


@pytest.mark.parametrize(("wide", "most"), [(True, 3), (False, 6)])
def test_a_lane_leaves_the_others_their_share_on_a_cpu(wide: bool, most: int) -> None:
    costs = Prices(1.0, token=1e-4)  # joining pays
    two = Dispatch(
        Lanes(engine=LANE, costs=costs, count=2),
        wide=Lanes(engine=WIDE, costs=costs) if wide else None,
        planner=Planner(most_rows=lambda _, at_once: 256 // at_once),
    )
    decision: Any = two.next([Size.full(1, 10)] * 6, 1, 0.01)

    assert len(decision[0][0]) == most


def test_nothing_starts_when_every_lane_runs() -> None:
    assert dispatch().next([Size.full(1, 10)] * 4, 2, 0.1) is None
    assert not dispatch().starts(Size.full(1, 10), 2, 0.1)
    assert dispatch().starts(Size.full(1, 10), 1, 0.1)


def test_few_requests_for_many_lanes_are_one_run_with_all_threads() -> None:
    eight = dispatch(8, speedup=6.0)
    few, many = eight.next([Size.full(1, 10)] * 3, 0, 0.0), eight.next([Size.full(1, 10)] * 7, 0, 0.0)

    assert few is not None
    assert many is not None
    assert (few[0], few[1].engine) == (([0, 1, 2], Size.full(3, 10)), WIDE)
    assert many[1].engine is LANE  # 7 × 10 ms / 6 are more than 10 ms


def test_all_threads_are_waited_for_where_that_is_sooner_than_one() -> None:
    eight = dispatch(8, speedup=6.0)
    later, now = eight.next([Size.full(1, 10)], 1, 0.05), eight.next([Size.full(1, 10)], 1, 0.09)

    assert later is None
    assert not eight.starts(Size.full(1, 10), 1, 0.05)
    assert now is not None
    assert now[1].engine is LANE


def test_one_run_with_all_threads_is_within_the_memory_limit() -> None:
    decision: Any = dispatch(8, speedup=6.0, most_rows=2).next([Size.full(1, 10)] * 3, 0, 0.0)

    assert decision[1].engine is LANE


def test_a_request_larger_than_the_share_of_a_lane_runs_alone_with_all_threads() -> None:
    two = dispatch(2, most_rows=8)
    alone, behind = (
        two.next([Size.full(5, 10), Size.full(1, 10)], 0, 0.0),
        two.next([Size.full(5, 10), Size.full(1, 10)], 1, 0.0),
    )

    assert alone is not None
    assert (alone[0], alone[1].engine) == (([0], Size.full(5, 10)), WIDE)
    assert behind is None
    assert not two.starts(Size.full(5, 10), 1, 0.1)
    beyond: Any = two.next([Size.full(100, 10)], 0, 0.0)  # a batch of several may not be so large
    assert beyond[1].engine is WIDE


def test_an_overdue_run_is_not_waited_for() -> None:
    eight = dispatch(8, speedup=6.0)

    for _ in range(20):
        decision = eight.next([Size.full(1, 10)], 1, 0.0)
        assert decision is not None
        assert decision[1].engine is LANE
