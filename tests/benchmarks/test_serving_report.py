"""A measurement meets its target by its median round, and shows the references it has."""

import pytest

from load_generator import LoadResult
from serving_report import BenchRow, BenchSample, Target, page


def measured(target: Target | None, *values: float) -> BenchRow:
    """One round for each value, against a limit of 10."""
    load = LoadResult(latencies_ms=[1.0, 2.0], errors=0, seconds=1.0, client_cpu_seconds=0.5)
    samples = [BenchSample.of(load, 1.0, value, {"limit": 10.0}) for value in values]
    return BenchRow(encoder="e", traffic="equal", in_flight=1, unit="p50 ms", target=target, samples=samples)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (None, None),
        (Target(of="limit", least=0.9), True),
        (Target(of="limit", least=1.0), False),
        (Target(of="limit", most=0.8), False),
        (Target(of="limit", most=0.8, plus_ms=1.0), True),
    ],
)
def test_the_median_round_is_judged(target: Target | None, met: bool | None) -> None:
    assert measured(target, 2.0, 9.0, 20.0).met is met


def test_only_measured_references_have_a_column() -> None:
    shown = page([measured(None, 9.0, 8.0, 11.0)], {}, {})

    assert "0.90 (0.80–1.10)" in shown
    assert "× limit" in shown
    assert "× baseline" not in shown
