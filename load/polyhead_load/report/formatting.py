"""Format numbers, intervals and labels for people."""

from polyhead_load.sweep.intervals import Interval
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.spec import Dimension

TOO_FEW = "too few samples"
NO_DIFFERENCE = "no measurable difference"


def _decimals(value: float) -> int:
    """Return how many decimals make about three digits."""
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def number(value: float | None) -> str:
    """Return about three digits, or nothing for None."""
    return "" if value is None else f"{value:,.{_decimals(value)}f}"


def percent(value: float | None) -> str:
    """Return a share of 1 such as `12%`, or nothing for None."""
    return "" if value is None else f"{value:.0%}"


def spread(interval: Interval) -> str:
    """Return an interval's ends, such as `8.05–8.20`."""
    places = _decimals(interval.value)
    return f"{interval.low:,.{places}f}–{interval.high:,.{places}f}"


def milliseconds(interval: Interval | None) -> str:
    """Return such as `8.12 (8.05–8.20)`, or TOO_FEW."""
    return TOO_FEW if interval is None else f"{number(interval.value)} ({spread(interval)})"


def factor(interval: Interval | None) -> str:
    """Return such as `1.07 (1.02–1.12)`, NO_DIFFERENCE with the interval, or TOO_FEW."""
    if interval is None:
        return TOO_FEW
    value, ends = ratio(interval)
    return f"{NO_DIFFERENCE if 1.0 in interval else value} ({ends})"


def ratio(interval: Interval) -> tuple[str, str]:
    """Return three digits of a ratio, and of its interval's ends."""
    value, low, high = (
        number(one) if one >= 1 else f"{one:#.3g}" for one in (interval.value, interval.low, interval.high)
    )
    return value, f"{low}–{high}"


def count(value: float | None) -> str:
    """Return a large number with a prefix, such as `85.1 M`, or nothing for None."""
    if value is None:
        return ""
    scale, prefix = next(
        one for one in ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, "")) if value >= one[0] or one[0] == 1
    )
    return f"{number(value / scale) if scale > 1 else f'{value:.0f}'}{prefix}"


def size(bytes_: float | None) -> str:
    """Return a size in bytes, KiB or MiB."""
    if bytes_ is None:
        return ""
    for unit, unit_bytes in (("MiB", 2**20), ("KiB", 2**10)):
        if bytes_ >= unit_bytes:
            return f"{number(bytes_ / unit_bytes)} {unit}"
    return f"{bytes_:.0f} B"


def described(dimension: Dimension, label: str) -> str:
    """Return a label with what it measures, such as `T 128` or `attention off`."""
    prefix = {"tokens": "T ", "batch": "B ", "outputs": ""}.get(dimension, "")
    return f"{prefix}{label}"


def load_title(load: str) -> str:
    """Return a load in words."""
    kind, value = parse_load(load)
    return {
        "single": "one in flight",
        "share": f"{load} of its own throughput",
        "rate": f"{value:g} requests/s",
    }.get(kind, load)
