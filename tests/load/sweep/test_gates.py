"""When a run is void, and when it is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.load.sweep.synthetic import a_plan, make_records, make_run

from polyhead_load.sweep.gates import reasons
from polyhead_load.sweep.records import Records
from polyhead_load.sweep.spec import Gates

GATES = Gates()


def with_codes(count: int, code: int) -> Records:
    records = make_records(400)
    codes = records.code.copy()
    codes[:count] = code
    return replace(records, code=codes)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_good_run_is_valid(mode: str) -> None:
    assert reasons(make_run(make_records()), a_plan(mode=mode), GATES) == ()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (with_codes(3, 14), "3 of 400 requests failed with UNAVAILABLE"),
        (with_codes(1, 4), "1 of 400 requests failed with DEADLINE_EXCEEDED"),
        (with_codes(2, -1), "2 of 400 requests were not sent: too many were in flight"),
        (make_records(lag_ms=1.2), "400 of 400 requests left more than 1.00 ms late, 1% may"),
    ],
)
def test_what_makes_an_open_loop_void(records: Records, message: str) -> None:
    assert reasons(make_run(records), a_plan(), GATES) == (message,)


@pytest.mark.parametrize(("late", "void"), [(4, False), (9, False), (10, True), (40, True)])
def test_one_in_a_hundred_may_be_late_and_a_few_by_chance(late: int, void: bool) -> None:
    records = make_records(400)
    sent = records.sent.copy()
    sent[:late] += 0.003

    assert bool(reasons(make_run(replace(records, sent=sent)), a_plan(), GATES)) is void


def test_a_lag_that_is_small_beside_the_latency_is_allowed() -> None:
    assert reasons(make_run(make_records(median_ms=40, lag_ms=1.9)), a_plan(), GATES) == ()


def test_the_lag_of_a_closed_loop_is_its_own_affair() -> None:
    assert reasons(make_run(make_records(lag_ms=3)), a_plan(mode="closed"), GATES) == ()


def test_a_busy_generator_voids_the_run() -> None:
    (reason,) = reasons(make_run(make_records(), cpu_seconds=3.4), a_plan(), GATES)

    assert reason.startswith("the generator used 85% of a core, at most 80%")


def test_nothing_answered() -> None:
    found = reasons(make_run(with_codes(400, 14)), a_plan(), GATES)

    assert found[-1] == "no request was answered"


def test_a_queue_that_only_grows_voids_an_open_loop() -> None:
    records = make_records()
    late = replace(records, done=records.planned + np.linspace(0.005, 2.0, 400))

    (reason,) = reasons(make_run(late), a_plan(), GATES)

    assert "were still unanswered when the last was sent, at most 20 may be" in reason


@pytest.mark.parametrize(("factor", "void"), [(1.0, False), (1.05, False), (1.3, True), (0.7, True)])
def test_a_closed_loop_that_drifts_is_void(factor: float, void: bool) -> None:
    records = make_records()
    slope = np.linspace(1.0, factor, 400)
    drifting = replace(records, done=records.planned + (records.done - records.planned) * slope)

    found = reasons(make_run(drifting), a_plan(mode="closed"), GATES)

    assert any("not stable" in reason for reason in found) is void


def test_chance_is_no_drift() -> None:
    """Few and scattered requests: the thirds differ by far more than a tenth, but not surely."""
    found: list[Any] = [
        reasons(make_run(make_records(30, sigma=0.8, seed=seed)), a_plan(mode="closed"), GATES)
        for seed in range(50)
    ]

    assert sum(map(bool, found)) <= 2
