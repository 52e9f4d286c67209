"""When a run is void, and when it is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.load.sweep.synthetic import a_plan, make_records, make_run

from polyhead_load.records import Records
from polyhead_load.sweep.gates import generator_reasons, machine_reasons, overload_reasons
from polyhead_load.sweep.spec import Gates

GATES = Gates()


def with_codes(count: int, code: int) -> Records:
    records = make_records(400)
    codes = records.code.copy()
    codes[:count] = code
    return replace(records, code=codes)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_good_run_is_valid(mode: str) -> None:
    run = make_run(make_records())

    assert generator_reasons(run, a_plan(mode=mode), GATES) == []
    assert overload_reasons(run, a_plan(mode=mode), GATES) == ()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (with_codes(3, 14), "3 of 400 requests failed with UNAVAILABLE"),
        (with_codes(1, 4), "1 of 400 requests failed with DEADLINE_EXCEEDED"),
        (with_codes(2, -1), "2 of 400 requests were not sent: too many were in flight"),
    ],
)
def test_what_the_server_refuses_is_a_result_and_not_void(records: Records, message: str) -> None:
    assert overload_reasons(make_run(records), a_plan(), GATES) == (message,)
    assert generator_reasons(make_run(records), a_plan(), GATES) == []


def test_late_requests_void_an_open_loop() -> None:
    assert generator_reasons(make_run(make_records(lag_ms=1.2)), a_plan(), GATES) == [
        "400 of 400 requests left more than 1.00 ms late (limit: 1%)"
    ]


@pytest.mark.parametrize(
    ("foreign", "steal", "message"),
    [
        (0.2, 0.0, "other processes used 0.20 cores meanwhile (limit: 0.15)"),
        (0.1, 0.5, "the machine's host took 0.50 cores away, as steal (limit: 0.15)"),
        (-0.05, 0.0, None),
        (None, None, None),
    ],
)
def test_other_work_on_the_machine_voids_the_run(
    foreign: float | None, steal: float | None, message: str | None
) -> None:
    found = machine_reasons(GATES, foreign=foreign, steal=steal)

    assert [reason.startswith(message or "") for reason in found] == [True] * bool(message)


def test_a_stall_is_no_reason_to_try_again() -> None:
    """Two seconds of four in which nothing is answered: all of it is in the latencies."""
    records = make_records()
    until = np.where((records.planned > 1) & (records.planned < 3), 3.0, records.planned)
    stalled = replace(records, done=until + 0.005)

    assert generator_reasons(make_run(stalled), a_plan(), GATES) == []
    assert overload_reasons(make_run(stalled), a_plan(), GATES) == ()
    assert np.quantile(stalled.latency_ms, 0.99) > 1900


@pytest.mark.parametrize(("late", "void"), [(4, False), (9, False), (10, True), (40, True)])
def test_one_in_a_hundred_may_be_late_and_a_few_by_chance(late: int, void: bool) -> None:
    records = make_records(400)
    sent = records.sent.copy()
    sent[:late] += 0.003

    assert bool(generator_reasons(make_run(replace(records, sent=sent)), a_plan(), GATES)) is void


def test_a_lag_that_is_small_beside_the_latency_is_allowed() -> None:
    assert generator_reasons(make_run(make_records(median_ms=40, lag_ms=1.9)), a_plan(), GATES) == []


def test_a_lag_that_is_small_beside_the_searched_limit_is_allowed() -> None:
    run = make_run(make_records(median_ms=5, lag_ms=1.9))

    assert generator_reasons(run, a_plan(), GATES)
    assert not generator_reasons(run, a_plan(), GATES, limit_ms=50.0)


def test_the_lag_of_a_closed_loop_is_its_own_affair() -> None:
    assert generator_reasons(make_run(make_records(lag_ms=3)), a_plan(mode="closed"), GATES) == []


def test_a_busy_generator_voids_the_run() -> None:
    (reason,) = generator_reasons(make_run(make_records(), cpu_seconds=3.4), a_plan(), GATES)

    assert reason.startswith("the generator used 85% of a core (limit: 80%)")


def test_nothing_answered() -> None:
    run = make_run(with_codes(400, 14))

    assert overload_reasons(run, a_plan(), GATES)[-1] == "no request was answered"
    assert generator_reasons(run, a_plan(), GATES) == []


def test_nothing_planned_is_void() -> None:
    run = make_run(make_records(0))

    assert generator_reasons(run, a_plan(), GATES) == [
        "no request was planned within 4 s: give a higher rate, or more seconds"
    ]
    assert overload_reasons(run, a_plan(), GATES) == ()


def test_a_queue_that_only_grows_is_overload() -> None:
    records = make_records()
    late = replace(records, done=records.planned + np.linspace(0.005, 2.0, 400))

    (reason,) = overload_reasons(make_run(late), a_plan(), GATES)

    assert "were still unanswered when the last was sent (limit: 20)" in reason


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize(("factor", "unstable"), [(1.0, False), (1.05, False), (1.3, True), (0.7, True)])
def test_a_server_that_gets_slower_or_faster_is_not_stable(mode: str, factor: float, unstable: bool) -> None:
    records = make_records()
    slope = np.linspace(1.0, factor, 400)
    drifting = replace(
        records,
        done=records.planned + (records.done - records.planned) * slope,
        compute_ns=(records.compute_ns * slope).astype(np.int64),
    )

    found = overload_reasons(make_run(drifting), a_plan(mode=mode), GATES)

    assert any("not stable" in reason for reason in found) is unstable


def test_chance_is_no_drift() -> None:
    """Few and scattered requests: the thirds differ by far more than a tenth, but not surely."""
    found: list[Any] = [
        overload_reasons(make_run(make_records(30, sigma=0.8, seed=seed)), a_plan(mode="closed"), GATES)
        for seed in range(50)
    ]

    assert sum(map(bool, found)) <= 2
