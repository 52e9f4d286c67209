"""What all pictures share: sizes, maps of cells with labels, and writing image files."""

import math
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

FONT_SIZE = 7.5
PITCH = 0.125
"""The least distance of two tick labels, in inches."""

_CHARACTER = 0.065
"""The width of a character of a label, in inches."""
_LEAST_SIDE, _MOST_SIDE = 1.4, 8.0
"""The limits for the longer side of a map, in inches."""
_LONGEST_LABEL = 24
"""In characters; the end of a longer token is left out."""
_BAR_WIDTH = 0.18
"""The width of a colour scale, in inches."""
_MOST_LINEAR = 64
_MISSING = "#9a9a9a"
"""The colour of cells without a value."""


def side(cells: int, most: float = _MOST_SIDE) -> float:
    """Return the side of a map with this many cells, in inches, such that there is room for labels."""
    return min(max(cells * PITCH, _LEAST_SIDE), most)


def margin(labels: Sequence[str]) -> float:
    """Return the room that labels take, in inches."""
    return _CHARACTER * max((len(label) for label in labels), default=1)


def names(tokens: Sequence[str] | None, count: int) -> list[str]:
    """Return labels for tokens, or their positions where there are none."""
    if not tokens:
        return [str(at) for at in range(count)]
    return [
        token if len(token) <= _LONGEST_LABEL else f"{token[: _LONGEST_LABEL - 1]}…"
        for token in map(str, tokens)
    ]


def draw_map(axes: Axes, values: Any, scale: Normalize, *, colours: str = "viridis") -> AxesImage:
    """Draw an array as a map of cells; cells that are NaN are grey."""
    axes.set_facecolor(_MISSING)
    return axes.imshow(values, cmap=colours, norm=scale, interpolation="nearest", aspect="auto")


def weight_scale(most: float, keys: int) -> Normalize:
    """Return the colour scale of attention weights, from 0 to the largest.

    Many keys share a row's weight, so that most cells would be black: beyond 64 keys, colours follow the
    square root of the weight.
    """
    return PowerNorm(0.5, 0, most) if keys > _MOST_LINEAR else Normalize(0, most)


def label(axis: Axis, labels: Sequence[str], inches: float, *, rotation: int) -> None:
    """Label an axis with tokens: every one if there is room, otherwise every second, third, ..."""
    step = max(1, math.ceil(len(labels) * PITCH / max(inches, PITCH) - 0.01))
    axis.set_ticks(range(0, len(labels), step), labels[::step], rotation=rotation, fontsize=FONT_SIZE)
    axis.set_tick_params(length=2, pad=1)
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # "$" is a token, not mathematics


def add_bar(figure: Figure, image: AxesImage, axes: Any, title: str, *, height: float | None = None) -> None:
    """Add the scale of the colours, beside axes of this height in inches; None means that of the figure."""
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=(height or figure.get_figheight()) / _BAR_WIDTH)
    if isinstance(image.norm, PowerNorm):
        title += ", colours by its square root"
    bar.ax.tick_params(labelsize=FONT_SIZE)
    bar.set_label(title, fontsize=FONT_SIZE, parse_math=False)


def kinds() -> Collection[str]:
    """Return the suffixes, without the dot, of the supported image formats."""
    return Figure().canvas.get_supported_filetypes().keys() - {"pgf"}  # it needs LaTeX


def save(figure: Figure, path: Path | str) -> None:
    """Write an image; the suffix of its name selects the format, one of `kinds`."""
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none"}):  # text that can be edited
        # Characters that the font lacks are drawn as boxes; a warning would not help.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=150)
