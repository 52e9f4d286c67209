"""Name how a configuration is called: `single`, `50%`, `20/s`, `throughput` or `p99 50ms`."""

import math
import re
from typing import Literal, NamedTuple

SEARCHED = "p99 "
"""How loads begin whose rate is searched."""

_LOAD = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>%|/s)")
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]+)")
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


class LoadKind(NamedTuple):
    """How a configuration is called."""

    kind: Literal["throughput", "single", "share", "rate", "p99"]
    """throughput: many in flight; single: one in flight; share: of the configuration's own throughput;
    rate: in requests a second; p99: rates among which the largest that holds this limit is searched."""
    value: float = 0.0
    """A share from 0 to 1, a rate in requests a second, or a limit in seconds."""


def parse_load(text: str) -> LoadKind:
    """Read `single`, `50%` or `20/s`, or what a sweep measures by itself: `throughput`, `p99 50ms`.

    Raises:
        ValueError: It is none of these.
    """
    if text in {"throughput", "single"}:
        return LoadKind(text)  # type: ignore[arg-type]  # one of the two
    if text.startswith(SEARCHED):
        return LoadKind("p99", read_seconds(text.removeprefix(SEARCHED)))
    match = _LOAD.fullmatch(text)
    if match is None or not 0 < (number := float(match["number"])) < math.inf:
        raise ValueError(f"must be single, a share such as 50% or a rate such as 20/s, was {text!r}")
    if match["unit"] == "/s":
        return LoadKind("rate", number)
    if number >= 100:
        raise ValueError(f"must be below 100% (a queue would only grow), was {text!r}")
    return LoadKind("share", number / 100)


def read_seconds(text: str) -> float:
    """Read a time with its unit, such as `50ms`.

    Raises:
        ValueError: It is none above 0.
    """
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"must be a time above 0 with its unit, such as 50ms, 0.2s or 800us, was {text!r}")
    return seconds
