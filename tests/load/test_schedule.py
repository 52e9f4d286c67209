from itertools import islice

import numpy as np
import pytest

from polyhead_load.schedule import poisson, schedule


@pytest.mark.parametrize("seed", [0, 11])
def test_the_same_seed_gives_the_same_schedule(seed: int) -> None:
    first, second = (list(schedule(90.0, seconds=30.0, warm_up_seconds=2.0, seed=seed)) for _ in range(2))

    assert first == second
    assert first != list(schedule(90.0, seconds=30.0, warm_up_seconds=2.0, seed=seed + 1))


def test_arrivals_are_those_of_a_poisson_process() -> None:
    times = np.array(list(islice(poisson(50.0, 3), 20_000)))
    gaps = np.diff(times, prepend=0.0)
    counts = np.bincount(times.astype(int))[:-1]

    assert (gaps > 0).all()
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    # Exponential gaps: as spread as they are long; counts of a second: their variance is their mean.
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert np.var(counts) == pytest.approx(50, rel=0.3)


def test_the_warm_up_changes_nothing_that_is_measured() -> None:
    cold = list(schedule(40.0, seconds=10.0, seed=5))
    warm = list(schedule(40.0, seconds=10.0, warm_up_seconds=3.0, seed=5))

    assert [arrival for arrival in warm if arrival.planned >= 0] == cold
    before = [arrival for arrival in warm if arrival.planned < 0]
    assert len(before) > 60
    assert before[0].planned >= -3
    assert [arrival.number for arrival in before] == list(range(len(before)))
    assert [arrival.number for arrival in cold] == list(range(len(cold)))
    assert cold[-1].planned < 10


@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_share_a_schedule(count: int) -> None:
    whole = list(schedule(200.0, seconds=20.0, warm_up_seconds=1.0, seed=2))
    shares = [
        list(schedule(200.0, seconds=20.0, warm_up_seconds=1.0, seed=2, index=index, count=count))
        for index in range(count)
    ]

    assert sorted((arrival for share in shares for arrival in share), key=lambda one: one.planned) == whole
    for share in shares:
        assert len(share) == pytest.approx(len(whole) / count, rel=0.15)


@pytest.mark.parametrize(("rate", "seconds"), [(20.0, 4.0), (3.3, 3.0), (437.2, 0.5)])
def test_a_schedule_has_as_many_arrivals_as_the_rate_says(rate: float, seconds: float) -> None:
    for seed in range(50):
        arrivals = list(schedule(rate, seconds=seconds, warm_up_seconds=1.0, seed=seed))
        before = sum(arrival.planned < 0 for arrival in arrivals)

        assert (before, len(arrivals) - before) == (round(rate), round(rate * seconds))


def test_between_its_ends_it_is_a_poisson_process() -> None:
    """A queue feels how arrivals bunch within a second; a number for the whole does not change that."""
    counts = np.concatenate(
        [
            np.bincount(np.array(list(poisson(50.0, seed, seconds=20.0))).astype(int), minlength=20)
            for seed in range(100)
        ]
    )
    gaps = np.concatenate([np.diff(list(poisson(50.0, seed, seconds=20.0))) for seed in range(100)])

    assert np.var(counts) == pytest.approx(50 * (1 - 1 / 20), rel=0.1)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.02)
