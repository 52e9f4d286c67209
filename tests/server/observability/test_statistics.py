"""What one version has done, as numbers on its page."""

import random
from typing import Any

from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.observer import Drop, Execution
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
