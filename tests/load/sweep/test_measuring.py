"""Throughput of a run, and CPU time of other processes meanwhile."""

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.load.sweep.synthetic import a_plan, make_records

from polyhead_load.records import Records
from polyhead_load.sweep.measuring import CpuTimes, throughput


def answered_at(done: list[float]) -> Records:
    """Answers at these times."""
    return replace(make_records(len(done)), done=np.array(done))


def test_a_closed_loops_end_does_not_count() -> None:
    """Behind the window fewer and fewer are in flight."""
    steady = [0.1 * number for number in range(1, 41)]
    records = answered_at([*steady, 4.5, 5.5, 7.0])

    assert throughput(records, a_plan(mode="closed")) == pytest.approx(10.0)


def test_an_open_loop_counts_until_the_last_answer() -> None:
    records = answered_at([0.05 * number for number in range(201)])

    assert throughput(records, a_plan()) == pytest.approx(20.0)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_few_answers_count_over_the_whole_window(mode: str) -> None:
    assert throughput(answered_at([1.0, 1.001, 3.0]), a_plan(mode=mode)) == pytest.approx(3 / 4)


BEFORE = CpuTimes(at=100.0, busy=50.0, steal=1.0, server=10.0, own=5.0)


def test_what_neither_server_nor_generator_used_is_foreign() -> None:
    after = replace(BEFORE, at=104.0, busy=57.0, steal=1.4, server=14.0, own=6.0)

    assert BEFORE.foreign_cores(after) == pytest.approx((7 - 4 - 1) / 4)
    assert BEFORE.stolen_cores(after) == pytest.approx(0.1)


@pytest.mark.parametrize("changes", [{"server": None}, {"busy": 50.0}])
def test_foreign_work_is_unknown_where_the_counters_are(changes: dict[str, float | None]) -> None:
    after = replace(BEFORE, **{"at": 104.0, "busy": 57.0, "server": 14.0} | changes)  # type: ignore[arg-type]

    assert BEFORE.foreign_cores(after) is None


def test_a_process_that_has_ended_is_our_own() -> None:
    before = CpuTimes.now(0.0)
    loop = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", loop], check=True)

    after = CpuTimes.now(0.0)

    assert after.own - before.own > 0.2
    assert after.at <= time.monotonic()
