"""Numbers as people read them."""

from polyhead_load.sweep.intervals import Interval

TOO_FEW = "too few samples"
NO_DIFFERENCE = "no measurable difference"


def digits(value: float) -> int:
    """Decimals for about three digits."""
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def number(value: float | None) -> str:
    """About three digits; nothing where there is none."""
    return "" if value is None else f"{value:,.{digits(value)}f}"


def spread(interval: Interval) -> str:
    """`8.05–8.20`."""
    places = digits(interval.value)
    return f"{interval.low:,.{places}f}–{interval.high:,.{places}f}"


def milliseconds(interval: Interval | None) -> str:
    """`8.12 (8.05–8.20)`, or that there is no number."""
    return TOO_FEW if interval is None else f"{number(interval.value)} ({spread(interval)})"


def factor(interval: Interval | None, missing: str = TOO_FEW) -> str:
    """`1.07 (1.02–1.12)`, that there is no difference, or why there is no number."""
    if interval is None:
        return missing
    shown = f"{interval.value:.3g} ({interval.low:.3g}–{interval.high:.3g})"
    return f"{NO_DIFFERENCE} ({interval.low:.3g}–{interval.high:.3g})" if 1.0 in interval else shown


def of(count: int, whole: int) -> str:
    """`2 of 5`; nothing for none."""
    return f"{count} of {whole}" if count else ""


def size(bytes_: float | None) -> str:
    """In the unit that fits."""
    if bytes_ is None:
        return ""
    for unit, factor_ in (("MiB", 2**20), ("KiB", 2**10)):
        if bytes_ >= factor_:
            return f"{number(bytes_ / factor_)} {unit}"
    return f"{bytes_:.0f} B"
