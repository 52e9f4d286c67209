"""Say how long an export will take, before it begins."""

from collections.abc import Collection, Mapping

from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig, parameter_counts

_BEGIN = 3.0
"""Seconds to import the exporter."""
_GRAPH, _LAYER = 3.5, 0.9
"""Seconds to trace and compare a fast graph, whatever its size, and each of its layers on top."""
_LARGER: Mapping[str, float] = {"attention": 1.4, "rows": 1.4, "stream": 2.5, "insight": 5.0}
"""How many operators other kinds have, as a multiple of the fast graph's."""
_COMPUTED = 0.35e-6
"""Seconds for each parameter of the layers, which PyTorch computes four times at five sizes."""
_STORED = 0.06e-6
"""Seconds for each parameter, to check, write and hash it."""


def seconds_of(config: EncoderConfig, kinds: Collection[GraphKind]) -> float:
    """Return about how many seconds an export of these graphs takes, as measured on two cores."""
    parts = parameter_counts(config)
    stored = sum(part.total for part in parts)
    computed = sum(part.total for part in parts if part.layers is not None)
    if config.shared_layers:  # stored once
        computed *= config.layers
    operators = sum(_LARGER.get(kind.name, 1.0) for kind in kinds)
    by_graph = operators * (_GRAPH + _LAYER * config.layers)
    return _BEGIN + by_graph + _COMPUTED * computed + _STORED * stored


def in_words(seconds: float) -> str:
    """Return a time such as `about 30 s` or `about 4 min`."""
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    return f"about {seconds / 60:.0f} min"
