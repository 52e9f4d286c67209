"""The search for the strongest plan."""

from collections.abc import Callable

import pytest

from benchmarks.engines.plans import BatchPlan
from benchmarks.engines.processes import plans_of, search
from benchmarks.rounds import Sample

SIZES = (1, 2, 4, 8, 16, 32)


def speed_of(rate: float, p50_ms: float = 1.0) -> Sample:
    return Sample(rate=rate, p50_ms=p50_ms)


def searched(
    speed: Callable[[BatchPlan, int], Sample], *, sorted_too: bool = False
) -> tuple[BatchPlan, float, list[BatchPlan]]:
    """What is found of two threads, its rate, and all that were measured."""
    measured: list[BatchPlan] = []

    def measure(plan: BatchPlan) -> Sample:
        measured.append(plan)
        return speed(plan, measured.count(plan))

    plan, rate = search(plans_of((1, 2), SIZES, sorted_too=sorted_too), measure)
    return plan, rate, measured


def test_the_best_batch_is_found() -> None:
    plan, rate, _ = searched(lambda plan, _: speed_of(100 - abs(plan.batch - 8)))

    assert (plan, rate) == (BatchPlan(batch=8, threads=2), 100)


def test_mixed_lengths_are_also_sorted() -> None:
    plan, _, _ = searched(
        lambda plan, _: speed_of(plan.batch + 100.0 * plan.by_length * (plan.batch > 1)), sorted_too=True
    )

    assert plan == BatchPlan(batch=32, by_length=True, threads=2)
    assert str(plan) == "1 × 2 threads, B = 32, by length"


def test_what_is_close_is_measured_again_so_that_luck_does_not_choose() -> None:
    def lucky_once(plan: BatchPlan, time: int) -> Sample:
        return speed_of((100, 80)[time - 1] if plan.batch == 2 else 95.0)

    assert searched(lucky_once)[0].batch == 1


@pytest.mark.parametrize("speed", [speed_of(10.0), speed_of(99.0, 5000.0)])
def test_nothing_larger_is_tried_once_it_is_hopeless_or_takes_long(speed: Sample) -> None:
    _, _, measured = searched(lambda plan, _: speed if plan.batch == 4 else speed_of(100.0))

    assert max(plan.batch for plan in measured) == 4
