"""A measurement meets its target by its median round, and shows the references it has."""

from collections.abc import Sequence

import pytest

from benchmarks.load_generator import LoadResult
from benchmarks.serving_report import BenchRow, BenchSample, Target, page, strongest

LOAD = LoadResult(latencies_ms=[1.0, 2.0], errors=0, seconds=1.0, client_cores=0.5, server_cores=1.6)


def measured(
    target: Target | None, *values: float, limits: Sequence[Sequence[float]] = (), in_flight: int = 8
) -> BenchRow:
    """One round for each value; against a limit of 10 if none is given."""
    limits = limits or [[10.0] for _ in values]
    samples = [BenchSample.of(LOAD, value, {}, limit) for value, limit in zip(values, limits, strict=True)]
    return BenchRow(
        encoder="e",
        traffic="equal",
        in_flight=in_flight,
        unit="p50 ms" if in_flight == 1 else "seq/s",
        target=target,
        candidates=[f"candidate {number}" for number in range(len(limits[0]))],
        samples=samples,
    )


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
    shown = page(
        [measured(None, 9.0, 8.0, 11.0)], {}, {"began": "", "cores": 2, "processor": ""} | VERSIONS, cores=2
    )

    assert "0.90 (0.80–1.10)" in shown
    assert "× limit" in shown
    assert "× baseline" not in shown


VERSIONS = dict.fromkeys(("Python", "grpcio", "polyhead"), "1")


def test_one_candidate_is_the_limit_of_all_rounds() -> None:
    """In the second round luck favours the other, which must not raise the limit."""
    row = measured(Target(of="limit", least=0.9), 9.0, 9.0, 9.0, limits=[[10, 8], [10, 12], [10, 8]])

    assert row.limit == 0
    assert row.values("limit") == [10, 10, 10]
    assert row.met


def test_the_fastest_candidate_limits_latencies() -> None:
    row = measured(None, 9.0, 9.0, 9.0, limits=[[10, 8], [7, 8], [10, 8]], in_flight=1)

    assert row.limit == 1
    assert row.ratios("limit") == [9 / 8] * 3


def test_the_strongest_has_the_best_median() -> None:
    rounds = [[1.0, 2.0, 9.0], [3.0, 4.0, 1.0], [5.0, 6.0, 1.0]]

    assert strongest(rounds) == 1
    assert strongest(rounds, lowest=True) == 2


def test_what_the_server_could_do_without_the_client() -> None:
    assert measured(None, 80.0).without_client(2) == pytest.approx(80 * 2 / 1.6)
    assert measured(None, 80.0, in_flight=1).without_client(2) is None
