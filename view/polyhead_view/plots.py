"""Draw attention as heat maps, one for each head.

Shape letters: T tokens, H heads.
"""

import math
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from polyhead_client.encoding import Encoding

_MOST_IN_A_ROW = 12
_FONT_SIZE = 7.5
_PITCH = 0.125
"""The least distance of two tick labels, in inches."""
_CHARACTER = 0.065
"""The width of a character of a label, in inches."""
_LEAST_SIDE, _MOST_SIDE = 1.4, 8.0
"""The limits for the side of a heat map, in inches."""


def draw_heads(encoding: Encoding, *, layer: int, columns: int | None = None) -> Figure:
    """Draw the attention weights of one sequence: a heat map for each head.

    Queries are rows, keys are columns. All maps share one colour scale, from 0 to the largest weight.

    Args:
        encoding: The encoding of a single sequence, with the attention of `layer`.
        layer: The layer to draw.
        columns: Heat maps per row; None means one row for up to 12 heads, and rows of equal length for more.

    Raises:
        ValueError: The encoding has no such attention, or is that of a batch.
    """
    if encoding.attention is None or layer not in encoding.attention:
        raise ValueError(f"layer must be one of {list(encoding.attention or ())}, was {layer}")
    weights = encoding.attention[layer]
    if not isinstance(weights, np.ndarray) or weights.ndim != 3:
        raise ValueError("encoding must be of one sequence, was of a batch")
    heads, keys = len(weights), weights.shape[2]
    if columns is None:
        columns = math.ceil(heads / math.ceil(heads / _MOST_IN_A_ROW))
    columns = min(columns, heads)
    rows = math.ceil(heads / columns)

    labels = [str(token) for token in encoding.tokens] if encoding.tokens else [str(at) for at in range(keys)]
    queries = labels if encoding.queries is None else [labels[at] for at in encoding.queries]
    width = min(max(keys * _PITCH, _LEAST_SIDE), _MOST_SIDE)
    height = width * len(queries) / keys
    margin = _CHARACTER * max(len(label) for label in labels)
    size = (columns * (width + 0.12) + margin + 1.1, rows * (height + 0.3) + margin + 0.75)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    most = float(np.nanmax(weights, initial=0.0)) or 1.0
    for axis, head, number in zip(axes.flat, weights, encoding.heads or range(heads), strict=False):
        image = axis.imshow(head, cmap="viridis", vmin=0, vmax=most, interpolation="nearest")
        axis.set_title(f"head {number}", fontsize=_FONT_SIZE, pad=3)
        _label(axis.xaxis, labels, width, rotation=90)
        _label(axis.yaxis, queries, height, rotation=0)
    for axis in axes.flat[heads:]:
        axis.set_visible(False)
    figure.supxlabel("key: the token that is attended to", fontsize=_FONT_SIZE)
    figure.supylabel("query: the token that attends", fontsize=_FONT_SIZE)
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.ax.tick_params(labelsize=_FONT_SIZE)
    bar.set_label("weight", fontsize=_FONT_SIZE)
    title = f"{encoding.model}, version {encoding.version}\nattention weights of layer {layer}"
    figure.suptitle(title, fontsize=_FONT_SIZE + 1, parse_math=False)
    return figure


def kinds() -> Collection[str]:
    """Return the suffixes, without the dot, of the supported image formats."""
    return Figure().canvas.get_supported_filetypes().keys() - {"pgf"}  # it needs LaTeX


def save(figure: Figure, path: Path) -> None:
    """Write an image; the suffix of its name selects the format, one of `kinds`."""
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; a warning would not help.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=150)


def _label(axis: Axis, labels: Sequence[str], inches: float, *, rotation: int) -> None:
    """Label an axis with tokens: every one if there is room, otherwise every second, third, ..."""
    step = max(1, math.ceil(len(labels) * _PITCH / max(inches, _PITCH) - 0.01))
    axis.set_ticks(range(0, len(labels), step), labels[::step], rotation=rotation, fontsize=_FONT_SIZE)
    axis.set_tick_params(length=2, pad=1)
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # "$" is a token, not mathematics
