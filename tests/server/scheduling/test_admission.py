"""Rejected callers come back one after the other."""

import pytest

from polyhead_server.scheduling.admission import (
    LONGEST_RETRY_SECONDS,
    SHORTEST_RETRY_SECONDS,
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
