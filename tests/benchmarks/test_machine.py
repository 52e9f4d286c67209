"""CPU time that is not ours disturbs a measurement."""

import multiprocessing
import time

from benchmarks.machine import Disturbance, cpu_seconds, watch
from polyhead_load.sweep.measuring import CpuTimes


def reading(at: float, busy: float, ours: float, steal: float = 0.0) -> CpuTimes:
    return CpuTimes(at=at, busy=busy, steal=steal, server=ours, own=0.0)


def test_what_is_busy_and_not_ours_disturbs() -> None:
    quiet = Disturbance.between(reading(0, 100, 10), reading(10, 115, 24))
    noisy = Disturbance.between(reading(0, 100, 10), reading(10, 115, 20))
    stolen = Disturbance.between(reading(0, 100, 10), reading(10, 110, 20, steal=2))

    assert (quiet.foreign, quiet.valid) == (0.1, True)
    assert (noisy.foreign, noisy.valid) == (0.5, False)
    assert (stolen.stolen, stolen.valid) == (0.2, False)


def _burn() -> None:
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass


def test_what_this_process_starts_is_ours() -> None:
    import psutil

    before, watched = cpu_seconds(psutil.Process()), watch()
    child = multiprocessing.get_context("spawn").Process(target=_burn)
    child.start()
    child.join()

    assert cpu_seconds(psutil.Process()) - before >= 0.3
    assert watched().foreign >= 0
