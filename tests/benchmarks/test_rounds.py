"""Contenders take turns; ratios are of one round, disturbed rounds are void, and medians are judged."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.machine import Disturbance
from benchmarks.rounds import (
    Comparison,
    Sample,
    Want,
    compare,
    markdown_table,
    ratio_of,
    time_in_turn,
    undisturbed,
)

QUIET, NOISY = Disturbance(foreign=0.0, stolen=0.0), Disturbance(foreign=1.0, stolen=0.0)


def sample(rate: float, **more: float) -> Sample:
    return Sample(rate=rate, **{"p50_ms": 1e3 / rate, **more})  # type: ignore[arg-type]


def compared(**rates: Iterable[float]) -> Comparison:
    return Comparison(title="it", samples={name: list(map(sample, of)) for name, of in rates.items()})


def test_calls_are_run_once_before_they_are_timed_in_both_directions() -> None:
    order: list[str] = []
    seconds = iter(range(100))

    taken = time_in_turn(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        seconds=0,
        clock=lambda: float(next(seconds)),
    )

    assert "".join(order) == "ab" + "abba" * 3
    assert taken == {"a": [1.0] * 6, "b": [1.0] * 6}


@pytest.fixture
def measures() -> dict[str, Callable[[], Sample]]:
    """Each measurement finds one more than the last."""
    rates: list[float] = []

    def measure() -> Sample:
        rates.append(len(rates) + 1.0)
        return sample(rates[-1])

    return {name: partial(measure) for name in "ab"}


def watched(*disturbances: Disturbance) -> Callable[[], Callable[[], Disturbance]]:
    every = iter(disturbances)
    return lambda: lambda: next(every)


def test_a_disturbed_round_is_void_and_repeated(measures: dict[str, Callable[[], Sample]]) -> None:
    found = compare("it", measures, 2, spare=2, watched=watched(QUIET, NOISY, QUIET))

    assert found.values("a") == [1, 5]
    assert undisturbed([found]).holds


def test_the_least_disturbed_rounds_stand_in_and_are_counted(
    measures: dict[str, Callable[[], Sample]],
) -> None:
    worse = Disturbance(foreign=0.0, stolen=2.0)

    found = compare("it", measures, 2, spare=1, watched=watched(worse, NOISY, QUIET))

    assert found.values("b") == [6, 3]
    assert undisturbed([found, compared(a=[1.0])]).seen == "1 of 3 were"


def test_ratios_are_of_the_same_turn() -> None:
    assert ratio_of([4.0, 1.0, 3.0], [2.0, 1.0, 1.0]) == (2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="shorter"):
        ratio_of([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("count", "outside"), [(3, 0), (6, 0), (9, 1), (20, 5)])
def test_the_interval_leaves_out_what_95_percent_allow(count: int, outside: int) -> None:
    """The median of 9 lies outside of the second to the eighth in 3.9 % of all cases."""
    ratio = ratio_of(range(1, count + 1), [1.0] * count)

    assert ratio == ((count + 1) / 2, 1 + outside, count - outside)


def test_comparisons_of_one_load_are_put_together() -> None:
    first = replace(compared(a=[1.0, 3.0], b=[2.0, 2.0]), disturbed=1)
    both = first.followed_by(compared(a=[8.0], b=[4.0]))

    assert (both.values("a"), both.values("b"), both.disturbed) == ([1.0, 3.0, 8.0], [2.0, 2.0, 4.0], 1)
    assert both.ratio("a", "b").value == 1.5


def test_the_strongest_has_the_best_median() -> None:
    """The best of each round would be the luckier one."""
    found = compared(
        polyhead=[1.0], **{"a, 1": [1.0, 3.0, 5.0], "a, 2": [2.0, 4.0, 6.0], "a, 3": [9.0, 1, 1]}
    )

    assert found.strongest("a") == "a, 2"
    assert found.strongest("b") is None


@pytest.mark.parametrize(
    ("want", "holds", "name"),
    [
        (Want(of="rival", least=1.25), True, "it: ours ≥ 1.25 × rival, fast"),
        (Want(of="rival", least=1.3), False, "it: ours ≥ 1.3 × rival, fast"),
        (Want(name="rival, slow", of="ours", least=0.1), True, "it: rival, slow ≥ 0.1 × ours"),
    ],
)
def test_the_median_round_is_judged_beside_the_strongest(want: Want, holds: bool, name: str) -> None:
    rivals = {"rival, slow": [20.0] * 3, "rival, fast": [80.0, 79.0, 81.0]}

    (judged,) = compared(ours=[100.0, 99.0, 110.0], **rivals).judge([want])

    assert (judged.name, judged.holds) == (name, holds)


def test_everyone_has_a_row_beside_the_base() -> None:
    ours = [sample(rate, p50_ms=8, p99_ms=20, server_cores=1.5) for rate in (90, 100, 110)]
    samples = {"a": ours, "b": [sample(50, p50_ms=16, errors=1)] * 3}

    lines = Comparison(title="it", samples=samples, notes={"b": "B = 4"}).lines()

    assert lines[0] == "## it"
    assert "| **a** | 100 |  | 8 |  | 20 | 15 | 0 |  |" in lines
    assert "| b | 50 | 0.50 (0.45–0.56) | 16 | 2.00 (2.00–2.00) |  |  | 3 | B = 4 |" in lines


def test_a_table_without_rows_is_nothing() -> None:
    assert markdown_table([]) == []
