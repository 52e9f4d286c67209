"""What is counted of one version of a model."""

import pytest
from tests.server.counting import Counts

from polyhead_server.observability.metrics import Metrics
from polyhead_server.observability.statistics import Drop, Execution, Statistics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def statistics(metrics: Metrics) -> Statistics:
    return Statistics("counted", 1, metrics=metrics)


@pytest.fixture
def counted(metrics: Metrics) -> Counts:
    return Counts(metrics)


def answered(statistics: Statistics, batch: int = 1, **times_ns: int) -> None:
    statistics.succeeded(batch, times_ns)


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
    metrics: Metrics, statistics: Statistics
) -> None:
    answered(statistics)
    metrics.forget("counted", 1)
    assert not any(metrics.totals()["counted", "1"].samples.values())
    answered(statistics)  # by a request that it still answers

    Statistics("counted", 1, metrics=metrics)

    assert metrics.totals()["counted", "1"]("polyhead_requests_total") == 0
