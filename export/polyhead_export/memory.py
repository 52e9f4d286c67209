"""Refuse an encoder that is too large for this machine, before memory is taken for it."""

import psutil

from polyhead_export.errors import ExportError
from polyhead_model import EncoderConfig, parameters
from polyhead_proto.system.cgroups import THIS_PROCESS, ControlGroups

_PEAK = 3.0
"""The most that an export takes at a time, as a multiple of the weights in fp32."""
_LAYER_PEAK = 1.75
"""What is taken on top, as a multiple of a layer's weights: one at a time, they are also in float64."""
_LAYER_BYTES = 2 * 2**20
"""What the graphs of one layer take while they are traced, beside its weights."""


def check_memory(config: EncoderConfig, *, groups: ControlGroups = THIS_PROCESS) -> None:
    """Check that an encoder can be built and exported in the memory that is free.

    Args:
        config: The encoder.
        groups: The control groups whose limits count.

    Raises:
        ExportError: It takes more than the machine or a control group has left.
    """
    weights = 4 * parameters(config)
    needed = int((_PEAK + _LAYER_PEAK / config.layers) * weights) + _LAYER_BYTES * config.layers
    free = min(int(psutil.virtual_memory().available), groups.memory_left())
    if needed > free:
        raise ExportError(
            f"exporting {parameters(config):,} parameters takes about {needed:,} bytes of memory "
            f"({_gib(needed)}; the weights alone are {_gib(weights)}), but {_gib(free)} are free: export it "
            "on a larger machine, or with fewer layers"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
