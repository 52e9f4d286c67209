"""What is counted of one version of a model."""

import random
from typing import Any

import pytest
from tests.server.counting import Counts

from polyhead_server.observability import metrics
from polyhead_server.observability.statistics import Drop, Execution, Statistics


@pytest.fixture
def statistics() -> Statistics:
    return Statistics("counted", 1)


@pytest.fixture
def counted(statistics: Statistics) -> Counts:
    return Counts()


def answered(statistics: Statistics, **others: Any) -> None:
    values = {
        "batch": 1,
        "total_ns": 0,
        "parse_ns": 0,
        "tokenise_ns": None,
        "queue_ns": 0,
        "compute_ns": 0,
        "serialise_ns": 0,
    }
    statistics.succeeded(**(values | others))


def test_times_fall_into_the_bucket_whose_bound_they_do_not_pass(
    statistics: Statistics, counted: Counts
) -> None:
    drawn = random.Random(5)
    samples = metrics.totals()["counted", "1"].samples["polyhead_queue_seconds_bucket"]
    bounds = [float(sample.labels["le"]) for sample in samples]
    nanoseconds = [round(bound * 1e9) for bound in bounds[:-1]]
    times = [*nanoseconds, *(bound + 1 for bound in nanoseconds), 0]
    times += [drawn.randrange(40 * 10**9) for _ in range(200)]
    for time in times:
        answered(statistics, queue_ns=time)

    assert bounds[-1] == float("inf")
    for sample, bound in zip(samples, bounds, strict=True):
        number = counted("polyhead_queue_seconds_bucket", "counted", le=sample.labels["le"])
        assert number == sum(time <= bound * 1e9 for time in times)
    assert counted("polyhead_queue_seconds_count", "counted") == len(times)
    assert counted("polyhead_queue_seconds_sum", "counted") == pytest.approx(sum(times) / 1e9)
    assert counted("polyhead_tokenise_seconds_count", "counted") == 0
    assert counted.codes("counted") == {"OK": len(times)}


def test_runs_are_counted_by_their_size(statistics: Statistics, counted: Counts) -> None:
    for sequences in (1, 3, 3, 256, 257, 5000):
        statistics.on_execution(
            Execution(
                sequences=sequences,
                requests=1,
                tokens=10,
                padded_tokens=12,
                input_ns=1_000,
                compute_ns=2_000,
                output_ns=3_000,
            )
        )
    statistics.on_drop(Drop.EXPIRED)

    def of(size: int) -> tuple[float, ...]:
        seconds = (
            counted("polyhead_run_seconds_total", "counted", sequences=str(size), stage=stage)
            for stage in ("input", "infer", "output")
        )
        return counted("polyhead_runs_total", "counted", sequences=str(size)), *seconds

    assert of(1) == of(256) == of(512) == of(8192) == pytest.approx((1, 1e-6, 2e-6, 3e-6))
    assert of(3) == pytest.approx((2, 2e-6, 4e-6, 6e-6))
    assert counted("polyhead_runs_total", "counted") == 6
    assert counted("polyhead_batch_sequences_count", "counted") == 6
    assert counted("polyhead_batch_sequences_sum", "counted") == 5520
    assert counted("polyhead_tokens_total", "counted") == 60
    assert counted("polyhead_padded_tokens_total", "counted") == 72
    assert counted("polyhead_drops_total", "counted", reason="expired") == 1


def test_a_version_that_is_forgotten_counts_from_the_beginning(
    statistics: Statistics, counted: Counts
) -> None:
    answered(statistics)
    metrics.forget("counted", 1)
    assert not any(metrics.totals()["counted", "1"].samples.values())
    answered(statistics)  # by a request that it still answers

    Statistics("counted", 1)

    assert metrics.totals()["counted", "1"]("polyhead_requests_total") == 0
