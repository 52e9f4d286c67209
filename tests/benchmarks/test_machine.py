"""CPU time that is not ours disturbs a measurement."""

from benchmarks.machine import Disturbance
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
