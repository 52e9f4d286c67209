"""A measurement meets its target by its median round, and shows the references it has."""

from collections.abc import Mapping

import pytest

from benchmarks.frame import Sample
from benchmarks.serving_report import POLYHEAD, BenchRow, Target, sections


def measured(*values: float, in_flight: int = 8, **limits: list[float]) -> BenchRow:
    """One round for each value; against a limit of 10 if none is given."""
    limits = limits or {"alone": [10.0] * len(values)}
    every: Mapping[str, list[float]] = {POLYHEAD: list(values), **limits}
    samples = {
        name: [Sample(rate=value, p50_ms=value, server_cores=1.6) for value in of]
        for name, of in every.items()
    }
    return BenchRow(
        encoder="e",
        traffic="equal",
        in_flight=in_flight,
        field="p50_ms" if in_flight == 1 else "rate",
        target=None,
        candidates=list(limits),
        samples=samples,
    )


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target(of="limit", least=0.9), True),
        (Target(of="limit", least=1.0), False),
        (Target(of="limit", most=0.8), False),
        (Target(of="limit", most=0.8, plus_ms=1.0), True),
    ],
)
def test_the_median_round_is_judged(target: Target, met: bool) -> None:
    condition = measured(2.0, 9.0, 20.0).judge(target)

    assert condition.holds is met
    assert condition.name == f"e, equal, 8 in flight: {target}"
    assert condition.seen == "0.900 (0.200–2.000)"


def test_a_target_needs_its_reference() -> None:
    with pytest.raises(ValueError, match="the floor must be measured"):
        measured(2.0).judge(Target(of="floor", least=0.5))


def test_only_measured_references_have_a_column() -> None:
    shown = "\n".join(sections([measured(9.0, 8.0, 11.0)], cores=2))

    assert "0.90 (0.80–1.10)" in shown
    assert "× limit" in shown
    assert "× baseline" not in shown


def test_one_candidate_is_the_limit_of_all_rounds() -> None:
    """In the second round luck favours the other, which must not raise the limit."""
    row = measured(9.0, 9.0, 9.0, one=[10, 10, 10], other=[8, 12, 8])

    assert row.name_of("limit") == "one"
    assert row.against("limit") == [0.9] * 3


def test_the_fastest_candidate_limits_latencies() -> None:
    row = measured(9.0, 9.0, 9.0, in_flight=1, one=[10, 7, 10], other=[8, 8, 8])

    assert row.name_of("limit") == "other"
    assert row.against("limit") == [9 / 8] * 3


def test_what_the_server_could_do_without_the_client() -> None:
    assert measured(80.0).without_client(2) == pytest.approx(80 * 2 / 1.6)
    assert measured(80.0, in_flight=1).without_client(2) is None
