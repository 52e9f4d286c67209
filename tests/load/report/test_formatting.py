import pytest

from polyhead_load.report.formatting import factor, ratio
from polyhead_load.sweep.intervals import Interval


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ((0.353, 0.000984, 126.4), ("0.353", "0.000984–126")),
        ((1.0, 0.9996, 1.004), ("1.00", "1.00–1.00")),
        ((25.31, 9.5, 1234.5), ("25.3", "9.50–1,234")),
    ],
)
def test_a_ratio_has_three_digits(interval: tuple[float, float, float], shown: tuple[str, str]) -> None:
    value, low, high = interval

    assert ratio(Interval(value=value, low=low, high=high)) == shown


def test_an_interval_that_holds_1_is_no_difference() -> None:
    assert factor(Interval(value=1.02, low=0.98, high=1.06)) == "no measurable difference (0.980–1.06)"
    assert factor(Interval(value=1.02, low=1.01, high=1.03)) == "1.02 (1.01–1.03)"
    assert factor(None) == "too few samples"
