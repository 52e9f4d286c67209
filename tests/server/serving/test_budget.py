"""Bytes that are held for callers: none is forgotten, none is let go twice."""

import pytest
from tests.server.counting import Counts

from polyhead_server.errors import UnavailableError
from polyhead_server.observability.metrics import Metrics
from polyhead_server.observability.statistics import Statistics
from polyhead_server.serving.budget import Budget


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def statistics(metrics: Metrics) -> Statistics:
    return Statistics("tiny", 1, metrics=metrics)


@pytest.fixture
def counted(metrics: Metrics) -> Counts:
    return Counts(metrics)


def test_who_does_not_fit_beside_the_others_is_refused_and_counted(
    statistics: Statistics, counted: Counts
) -> None:
    budget = Budget(100, Statistics())
    with budget.reserve(60), budget.reserve(10) as second:
        with pytest.raises(UnavailableError, match="hold 70 bytes, 31 more would pass the limit of 100: try"):
            second.add(31, statistics)
        with pytest.raises(UnavailableError, match="31 more") as caught:
            budget.reserve(31)
        assert budget.bytes == 70

    assert caught.value.retry_after_ms is not None
    assert counted("polyhead_drops_total", "tiny", reason="memory") == 1
    assert budget.bytes == 0


def test_who_is_alone_is_always_taken(statistics: Statistics, counted: Counts) -> None:
    budget = Budget(100, statistics)

    with budget.reserve(500) as one:
        one.add(500, statistics)
        with pytest.raises(UnavailableError):
            budget.reserve(1)

    assert counted("polyhead_drops_total", "tiny", reason="memory") == 1
    assert counted.codes("tiny") == {"UNAVAILABLE": 1}


def test_what_arrives_is_counted_as_it_comes_and_apart_until_it_is_complete(
    statistics: Statistics, counted: Counts
) -> None:
    budget = Budget(100, statistics)
    with budget.reserve(30), budget.begin() as coming:
        coming.add(40)
        assert (budget.bytes, budget.arriving) == (70, 40)
        with pytest.raises(UnavailableError, match="hold 70 bytes, 31 more"):
            coming.add(31)
        coming.add(-10)
        coming.arrived()
        coming.add(5)
        assert (budget.bytes, budget.arriving) == (65, 0)

    assert (budget.bytes, budget.arriving) == (0, 0)
    assert counted("polyhead_drops_total", "tiny", reason="memory") == 1


def test_what_is_released_takes_nothing_more(statistics: Statistics) -> None:
    budget = Budget(100, statistics)
    one = budget.begin()
    one.add(60)
    one.release()

    one.add(500)
    one.arrived()
    one.release()

    assert (budget.bytes, budget.arriving) == (0, 0)
