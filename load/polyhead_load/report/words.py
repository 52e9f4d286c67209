"""Numbers as people read them."""

from polyhead_load.sweep.intervals import Interval
from polyhead_load.sweep.spec import Dimension, parse_load

TOO_FEW = "too few samples"
NO_DIFFERENCE = "no measurable difference"


def digits(value: float) -> int:
    """Return how many decimals make about three digits."""
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def number(value: float | None) -> str:
    """Return about three digits; nothing for None."""
    return "" if value is None else f"{value:,.{digits(value)}f}"


def spread(interval: Interval) -> str:
    """Return such as `8.05–8.20`."""
    places = digits(interval.value)
    return f"{interval.low:,.{places}f}–{interval.high:,.{places}f}"


def milliseconds(interval: Interval | None) -> str:
    """Return such as `8.12 (8.05–8.20)`, or that there is no number."""
    return TOO_FEW if interval is None else f"{number(interval.value)} ({spread(interval)})"


def factor(interval: Interval | None, missing: str = TOO_FEW) -> str:
    """Return such as `1.07 (1.02–1.12)`, that there is no difference, or why there is no number."""
    if interval is None:
        return missing
    reach = f"({interval.low:#.3g}–{interval.high:#.3g})"
    return f"{NO_DIFFERENCE if 1.0 in interval else f'{interval.value:#.3g}'} {reach}"


def of(count: int, whole: int) -> str:
    """Return such as `2 of 5`; nothing for none."""
    return f"{count} of {whole}" if count else ""


def size(bytes_: float | None) -> str:
    """Return a size in the unit that fits."""
    if bytes_ is None:
        return ""
    for unit, factor_ in (("MiB", 2**20), ("KiB", 2**10)):
        if bytes_ >= factor_:
            return f"{number(bytes_ / factor_)} {unit}"
    return f"{bytes_:.0f} B"


def described(name: Dimension, label: str) -> str:
    """Return such as `T 128` or `attention off`."""
    return {"tokens": f"T {label}", "batch": f"B {label}", "attention": f"attention {label}"}.get(name, label)


def load_title(load: str) -> str:
    """Return a load in words."""
    kind, value = parse_load(load)
    return {
        "single": "one in flight",
        "share": f"{load} of its own capacity",
        "common": "the same rate for all",
        "rate": f"{value:g} requests/s",
    }.get(kind, load)
