import time

import gevent
import numpy as np
import pytest

from polyhead_load.timer import PreciseTimer


@pytest.fixture
def alarm() -> PreciseTimer:
    return PreciseTimer()


def test_it_never_wakes_early(alarm: PreciseTimer) -> None:
    for seconds in np.random.default_rng(1).uniform(-0.001, 0.004, 40).tolist():
        moment = time.perf_counter() + seconds
        alarm.wait_until(moment)
        assert time.perf_counter() >= moment
    alarm.close()


def test_others_run_meanwhile(alarm: PreciseTimer) -> None:
    ran: list[int] = []
    others = [gevent.spawn(ran.append, number) for number in range(3)]
    while not ran:  # it does not wait for a moment that a busy machine has let pass
        alarm.wait_until(time.perf_counter() + 0.02)
    alarm.close()

    assert ran == [0, 1, 2]
    gevent.joinall(others)
