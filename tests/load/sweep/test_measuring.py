"""How many answers a second a run gave."""

from dataclasses import replace

import numpy as np
import pytest
from tests.load.sweep.synthetic import a_plan, make_records

from polyhead_load.records import Records
from polyhead_load.sweep.measuring import throughput


def answered_at(done: list[float]) -> Records:
    """Answers at these times."""
    return replace(make_records(len(done)), done=np.array(done))


def test_a_closed_loops_end_does_not_count() -> None:
    """Behind the window fewer and fewer are in flight."""
    steady = [0.1 * number for number in range(1, 41)]
    records = answered_at([*steady, 4.5, 5.5, 7.0])

    assert throughput(records, a_plan(mode="closed")) == pytest.approx(10.0)


def test_a_window_that_cuts_an_answer_off_does_not_round() -> None:
    """Answers each 0.3 s: 13 begin within four seconds, or 14, as it happens; the pace is the same."""
    for first in (0.01, 0.1, 0.29):
        records = answered_at([first + 0.3 * number for number in range(13)])

        assert throughput(records, a_plan(mode="closed")) == pytest.approx(1 / 0.3)


def test_an_open_loop_counts_until_the_last_answer() -> None:
    records = answered_at([0.05 * number for number in range(201)])

    assert throughput(records, a_plan()) == pytest.approx(20.0)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_few_answers_count_over_the_whole_window(mode: str) -> None:
    assert throughput(answered_at([1.0, 1.001, 3.0]), a_plan(mode=mode)) == pytest.approx(3 / 4)
