"""What must hold of a server's start."""

from dataclasses import replace

import pytest

from benchmarks.startup import StartSample, judge

QUICK = StartSample(
    opened_seconds=0.2, answered_seconds=1.2, first_ms=9.0, slowest_ms=99.0, steady_ms=5.0, rss_mib=300.0
)


def held(*samples: StartSample) -> list[bool]:
    return [condition.holds for condition in judge(samples, weights_mib=80.0)]


def test_a_start_within_every_bound() -> None:
    assert held(QUICK) == [True, True, True]


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (replace(QUICK, answered_seconds=1.4), [False, True, True]),
        (replace(QUICK, first_ms=11.0), [True, False, True]),
        (replace(QUICK, rss_mib=330.0), [True, True, False]),
    ],
)
def test_the_median_start_counts(slow: StartSample, expected: list[bool]) -> None:
    assert held(QUICK, slow, slow) == expected
    assert held(QUICK, QUICK, slow) == [True, True, True]
