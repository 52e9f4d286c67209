"""Whose processor time it was."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from polyhead_load.sweep.machine import Moment

BEFORE = Moment(at=100.0, busy=50.0, steal=1.0, server=10.0, own=5.0)


def test_what_neither_server_nor_generator_used_is_foreign() -> None:
    after = replace(BEFORE, at=104.0, busy=57.0, steal=1.4, server=14.0, own=6.0)

    usage = BEFORE.until(after)

    assert usage.foreign == pytest.approx((7 - 4 - 1) / 4)
    assert usage.steal == pytest.approx(0.1)


@pytest.mark.parametrize("changes", [{"server": None}, {"busy": 50.0}])
def test_foreign_work_is_unknown_where_the_counters_are(changes: dict[str, float | None]) -> None:
    after = replace(BEFORE, **{"at": 104.0, "busy": 57.0, "server": 14.0} | changes)  # type: ignore[arg-type]

    assert BEFORE.until(after).foreign is None


def test_a_process_that_has_ended_is_our_own() -> None:
    before = Moment.now(0.0)
    loop = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", loop], check=True)

    after = Moment.now(0.0)

    assert after.own - before.own > 0.2
    assert after.at <= time.monotonic()
