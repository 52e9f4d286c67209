"""Numbers as people read them."""

import pytest

from polyhead_load.report.formatting import factor, milliseconds, number, size
from polyhead_load.sweep.intervals import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (None, "")],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_intervals() -> None:
    assert milliseconds(Interval(value=8.123, low=8.05, high=8.2)) == "8.12 (8.05–8.20)"
    assert milliseconds(None) == factor(None) == "too few samples"


def test_ratios() -> None:
    assert factor(Interval(value=1.071, low=1.02, high=1.12)) == "1.07 (1.02–1.12)"
    assert factor(Interval(value=1.071, low=0.98, high=1.12)) == "no measurable difference (0.980–1.12)"
    assert factor(Interval(value=1.3, low=1.001, high=1.7)) == "1.30 (1.00–1.70)"


def test_sizes() -> None:
    assert (size(100), size(2048), size(9.5 * 2**20), size(None)) == ("100 B", "2.00 KiB", "9.50 MiB", "")
