"""Rejected callers come back one after the other, and estimates follow what runs really take."""

import pytest

from polyhead_server.scheduling.admission import (
    LONGEST_RETRY_SECONDS,
    SHORTEST_RETRY_SECONDS,
    Calibration,
    RetryAfter,
)


def test_one_after_the_other_from_when_there_is_room() -> None:
    retry_after = RetryAfter()

    given = [retry_after.reserve(10.0, room_at=10.5, seconds=0.25) for _ in range(3)]
    assert given == pytest.approx([0.5, 0.75, 1.0])


def test_what_passed_is_not_given_again_and_a_longer_queue_moves_them() -> None:
    retry_after = RetryAfter()
    retry_after.reserve(10.0, room_at=10.5, seconds=0.25)

    assert retry_after.reserve(10.6, room_at=10.7, seconds=0.25) == pytest.approx(0.15)
    assert retry_after.reserve(10.6, room_at=12.6, seconds=0.25) == pytest.approx(2.0)
    assert retry_after.reserve(60.0, room_at=60.0, seconds=0.25) == SHORTEST_RETRY_SECONDS


def test_when_all_is_taken_it_is_a_random_time_and_never_too_far() -> None:
    chances = iter([0.0, 0.5, 1.0])
    retry_after = RetryAfter(lambda: next(chances))
    for _ in range(10):
        retry_after.reserve(0.0, room_at=0.0, seconds=0.5)

    given = [retry_after.reserve(0.0, room_at=0.0, seconds=0.5) for _ in range(3)]
    assert given == pytest.approx(
        [LONGEST_RETRY_SECONDS / 2, LONGEST_RETRY_SECONDS * 3 / 4, LONGEST_RETRY_SECONDS]
    )
    # Those who hammered in vain do not push the others away for longer.
    assert retry_after.reserve(1.0, room_at=1.0, seconds=0.5) == pytest.approx(LONGEST_RETRY_SECONDS - 1)


def test_work_that_takes_longer_than_the_longest() -> None:
    assert RetryAfter(lambda: 0.0).reserve(0.0, room_at=0.0, seconds=60.0) == LONGEST_RETRY_SECONDS / 2


def test_estimates_follow_the_runs_and_a_stall_counts_for_little() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.observe(1.0, 0.5)
    assert calibration.likely(2.0) == calibration.at_least(2.0) == pytest.approx(1.0, rel=0.01)

    calibration.observe(1.0, 1000.0)
    assert calibration.likely(1.0) == pytest.approx(0.85, rel=0.01)
    for _ in range(100):
        calibration.observe(1.0, 3.0)
    assert calibration.likely(1.0) == pytest.approx(3.0, rel=0.01)
    assert calibration.at_least(1.0) == 1.0
