"""What one version has done, as numbers on its page."""

import random
from typing import Any

import pytest

from polyhead_server.errors import ExpiredError, InvalidRequestError, UnavailableError
from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.observer import Drop, Execution
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.observability.statistics import Statistics


def answered(statistics: Statistics, **others: Any) -> None:
    values = {
        "batch": 1,
        "total_ns": 0,
        "parse_ns": 0,
        "tokenise_ns": None,
        "input_ns": 0,
        "queue_ns": 0,
        "compute_ns": 0,
        "serialise_ns": 0,
    }
    statistics.succeeded(**(values | others))


def test_times_fall_into_the_bucket_whose_bound_they_do_not_pass() -> None:
    statistics = Statistics()
    drawn = random.Random(5)
    bounds = slots.QUEUE.bounds
    times = [*bounds, *(bound + 1 for bound in bounds), *(drawn.randrange(40 * 10**9) for _ in range(200)), 0]
    for time in times:
        answered(statistics, queue_ns=time)

    values = statistics.page

    for index, bound in enumerate(bounds):
        counted = sum(values[slots.QUEUE.first : slots.QUEUE.first + index + 1])
        assert counted == sum(time <= bound for time in times)
    assert slots.QUEUE.count(values) == len(times)
    assert values[slots.QUEUE.sum] == sum(times)


def test_only_text_is_tokenised() -> None:
    statistics = Statistics()
    answered(statistics)
    answered(statistics, tokenise_ns=7, batch=3)

    values = statistics.page

    assert (slots.TOKENISE.count(values), values[slots.TOKENISE.sum]) == (1, 7)
    assert (slots.REQUEST.count(values), values[slots.SEQUENCES], values[slots.CODE[slots.GRPC]["OK"]]) == (
        2,
        4,
        2,
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequestError("x"), "INVALID_ARGUMENT"),
        (UnavailableError("x", retry_after_ms=1), "UNAVAILABLE"),
        (ExpiredError("x"), "DEADLINE_EXCEEDED"),
        (RuntimeError("x"), "INTERNAL"),
        (GeneratorExit(), "CANCELLED"),
    ],
)
def test_failures_are_counted_by_their_status(error: BaseException, code: str) -> None:
    statistics = Statistics(SharedCounters.create(), "tiny", 2)
    statistics.failed(total_ns=5, error=error)

    values = statistics.page

    assert {name: values[slot] for name, slot in slots.CODE[slots.GRPC].items() if values[slot]} == {code: 1}
    assert (values[slots.FAILED], values[slots.FAILED_NS]) == (1, 5)


def test_runs_are_counted_by_their_size() -> None:
    statistics = Statistics()
    for sequences in (1, 3, 3, 5000):
        statistics.on_execution(
            Execution(
                sequences=sequences,
                requests=1,
                tokens=10,
                padded_tokens=12,
                input_ns=1,
                compute_ns=2,
                output_ns=3,
            )
        )
    statistics.on_drop(Drop.EXPIRED)

    values = statistics.page

    rows = {size: list(values[row : row + 4]) for size, row in slots.BATCH_ROWS.items() if values[row]}
    assert rows == {1: [1, 1, 2, 3], 3: [2, 2, 4, 6], 8192: [1, 1, 2, 3]}
    assert (slots.BATCH.count(values), values[slots.BATCH.sum]) == (4, 5007)
    assert (values[slots.TOKENS], values[slots.PADDED_TOKENS], values[slots.DROP["expired"]]) == (40, 48, 1)
