"""Say how long an export will take, before it begins."""

from collections.abc import Collection, Mapping

from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig, parameter_counts

_BEGIN = 4.0
"""Seconds that the first graph takes on top, as the exporter is imported."""
_GRAPH, _LAYER = 1.9, 0.8
"""Seconds to trace and translate a fast graph, whatever its size, and each of its layers on top."""
_LARGER: Mapping[str, float] = {"attention": 1.4, "rows": 1.4, "stream": 2.5, "insight": 5.0}
"""How many operators other kinds have, as a multiple of the fast graph's."""
_COMPARED = 0.33e-6
"""Seconds for each parameter of the layers, to compare one graph with PyTorch."""


def seconds_of(config: EncoderConfig, kinds: Collection[GraphKind]) -> float:
    """Return about how many seconds an export of these graphs takes, as measured on two cores.

    Tracing takes most of it in small encoders, comparing with PyTorch in large ones.
    """
    size = sum(part.total for part in parameter_counts(config) if part.layers is not None)
    if config.shared_layers:  # stored once, computed L times
        size *= config.layers
    traced = sum(_LARGER.get(kind.name, 1.0) for kind in kinds) * (_GRAPH + _LAYER * config.layers)
    return _BEGIN + traced + len(kinds) * _COMPARED * size


def in_words(seconds: float) -> str:
    """Return a time with one digit, or two in minutes: `about 30 s`, `about 4 min`."""
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    return f"about {seconds / 60:.0f} min"
