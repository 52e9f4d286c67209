"""What all pictures share: sizes, maps of cells with labels, titles, and writing image files."""

import io
import math
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from textwrap import fill
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from numpy.typing import NDArray

from polyhead_view.fonts import families, fonts_to_install

Colours = Colormap | str
FONT_SIZE = 7.5
PITCH = 0.125
"""The least distance of two tick labels, in inches."""
BAR_COLOUR = "#4c6a92"
KEY, QUERY = "key: the token that is attended to", "query: the token that attends"
LEAST_HEIGHT = 1.8
"""The least height of a figure whose rows are queries, in inches: `QUERY` stands beside them."""
DPI = 150
"""Dots an inch of image files, unless something else is asked for."""

_CHARACTER = 0.065
"""The width of a character of a label, in inches."""
_LETTER, LINE = 0.058, 0.125
"""The width of a letter of a sentence, and the height of a line, in inches."""
_WIDE = 0x1100
"""The first character from which on most are twice as wide."""
_LEAST_SIDE, _MOST_SIDE = 1.4, 8.0
"""The limits for the longer side of a map, in inches."""
_LONGEST_LABEL = 24
"""In characters; the end of a longer token is left out."""
_BAR_WIDTH = 0.18
"""The width of a colour scale, in inches."""
_MOST_LINEAR = 64
_MISSING = "#9a9a9a"
"""The colour of cells without a value."""
_MASKED, _HATCH = "#f2f2f2", "#b4b4b4"
"""The colours of cells that are masked, and of their hatching, which no colour of a weight has."""
_MOST_DOTS = 1 << 16
"""The most dots on either side of a picture, which the renderer can draw."""


class Picture(Figure):
    """A figure that a notebook shows, also one that has not run `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        _write(self, data, format="png", bbox_inches="tight")  # as `%matplotlib inline` does
        return data.getvalue()


def side(cells: int, most: float = _MOST_SIDE) -> float:
    """Return the side of a map with this many cells, in inches, such that there is room for labels."""
    return min(max(cells * PITCH, _LEAST_SIDE), most)


def margin(labels: Sequence[str]) -> float:
    """Return the room that labels take, in inches."""
    return _CHARACTER * max(
        (sum(1 + (ord(each) >= _WIDE) for each in _short(one)) for one in labels), default=1
    )


def wrapped(text: str, inches: float, *, size: float = FONT_SIZE) -> str:
    """Return a text in as many lines as it takes at this width."""
    wide = any(ord(character) >= _WIDE for character in text)
    letters = max(int(inches / _LETTER / (1 + wide) * FONT_SIZE / size), 8)
    return "\n".join(fill(line, letters) for line in text.split("\n"))


def draw_map(
    axes: Axes,
    values: Any,
    scale: Normalize,
    *,
    colours: Colours = "viridis",
    visible: NDArray[np.bool_] | None = None,
) -> AxesImage:
    """Draw an array as a map of cells: those that are NaN are grey, and masked ones hatched.

    Args:
        axes: Where to draw it.
        values: [rows, columns].
        scale: What the ends of the colours stand for.
        colours: A colour map of matplotlib, or its name.
        visible: Boolean [rows, columns], False = masked; None means that no cell is.

    Raises:
        ValueError: There is no such colour map.
    """
    check_colours(colours)
    axes.set_facecolor(_MISSING)
    hidden = None if visible is None or visible.all() else ~visible
    map_ = mpl.colormaps.get_cmap(colours)
    if hidden is not None:
        values, map_ = np.where(hidden, (scale.vmin or 0) - 1, values), map_.with_extremes(under=_MASKED)
    image = axes.imshow(values, cmap=map_, norm=scale, interpolation="nearest", aspect="auto")
    if hidden is not None:
        axes.add_patch(_hatching(hidden))
    return image


def check_colours(colours: Colours) -> None:
    """Check a colour map, or its name.

    Raises:
        ValueError: There is no such colour map.
    """
    if isinstance(colours, str) and colours not in mpl.colormaps:
        raise ValueError(
            f"colours must be a colour map of matplotlib, such as viridis or Blues, was {colours!r}"
        )


def _hatching(hidden: NDArray[np.bool_]) -> PathPatch:
    """Return the hatching of cells, as one shape of a rectangle for each run of them in a row."""
    edges = np.diff(hidden.astype(np.int8), axis=1, prepend=0, append=0)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    left, right, low, high = starts - 0.5, ends - 0.5, rows - 0.5, rows + 0.5
    corners = np.stack([[left, low], [right, low], [right, high], [left, high], [left, low]]).transpose(
        2, 0, 1
    )
    codes = np.tile([Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY], len(rows))
    patch = PathPatch(
        Outline(corners.reshape(-1, 2), codes),
        facecolor="none",
        edgecolor=_HATCH,
        linewidth=0,
        hatch="//////",
    )
    patch.set_hatch_linewidth(0.4)
    return patch


def write_values(axes: Axes, image: AxesImage, values: NDArray[Any], visible: Any = True) -> None:
    """Write numbers into the cells of a map, in black or white, whichever is easier to read on its colour.

    Args:
        axes: The axes of the map.
        image: The map.
        values: Its values [rows, columns]; those that are not finite are left out.
        visible: Boolean, likewise; False is left out.
    """
    for (row, column), value in np.ndenumerate(np.where(visible, values, np.nan)):
        if np.isfinite(value):
            red, green, blue, _ = image.to_rgba(np.asarray(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5  # luma of ITU-R BT.601
            axes.text(
                column,
                row,
                f"{value:.2f}",
                color="white" if dark else "black",
                size=FONT_SIZE - 1,
                ha="center",
                va="center",
            )


def weight_scale(most: float, keys: int) -> Normalize:
    """Return the colour scale of attention weights, from 0 to the largest.

    Many keys share a row's weight, so that most cells would be black: beyond 64 keys, colours follow the
    square root of the weight.
    """
    return PowerNorm(0.5, 0, most) if keys > _MOST_LINEAR else Normalize(0, most)


def label(axis: Axis, labels: Sequence[str], inches: float, *, rotation: int) -> str:
    """Label an axis with tokens: every one if there is room, otherwise every second, third, ...

    Returns:
        What the name of the axis must add: which tokens are labelled, if not all.
    """
    step = max(1, math.ceil(len(labels) * PITCH / max(inches, PITCH) - 0.01))
    shown = [_short(each) for each in labels[::step]]
    axis.set_ticks(
        range(0, len(labels), step), shown, rotation=rotation, fontsize=FONT_SIZE, fontfamily=families(shown)
    )
    axis.set_tick_params(length=2, pad=1)
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # "$" is a token, not mathematics
    return "" if step == 1 else f" (every {_ordinal(step)} token is labelled)"


def _ordinal(number: int) -> str:
    ending = "th" if 11 <= number % 100 <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…"


def add_bar(
    figure: Figure,
    image: AxesImage,
    ax: Any,
    title: str,
    *,
    height: float | None = None,
    masked: bool = False,
) -> None:
    """Add the scale of the colours.

    Args:
        figure: The figure.
        image: A map that has them.
        ax: The axes to put it beside.
        title: What the values are.
        height: The height of the axes, in inches; None means that of the figure.
        masked: Whether some cells are masked.
    """
    bar = figure.colorbar(image, ax=ax, pad=0.01, aspect=(height or figure.get_figheight()) / _BAR_WIDTH)
    if isinstance(image.norm, PowerNorm):
        title += ", colours by its square root"
    if masked:
        title += "; hatched: masked"
    bar.ax.tick_params(labelsize=FONT_SIZE)
    bar.set_label(title, fontsize=FONT_SIZE, parse_math=False)


def set_title(figure: Figure, title: str | None, *lines: str) -> None:
    """Write the title of a figure; None means these lines, as far as they are not empty, and "" none.

    Lines that are longer than the figure is wide become several, and the figure higher.
    """
    text = "\n".join(filter(None, lines)) if title is None else title
    if text:
        fitting = wrapped(text, figure.get_figwidth() - 0.1, size=FONT_SIZE + 1)
        more = fitting.count("\n") - text.count("\n")
        figure.set_figheight(figure.get_figheight() + more * LINE * (FONT_SIZE + 1) / FONT_SIZE)
        figure.suptitle(fitting, fontsize=FONT_SIZE + 1, parse_math=False, fontfamily=families([text]))


def kinds() -> Collection[str]:
    """Return the suffixes, without the dot, of the supported image formats."""
    return Figure().canvas.get_supported_filetypes().keys() - {"pgf"}  # it needs LaTeX


def save(figure: Figure, path: Path | str, *, dpi: float = DPI) -> None:
    """Write an image; the suffix of its name selects the format, one of `kinds`.

    PDF and PostScript files embed their fonts as TrueType (type 42), which journals ask for. Debian's Noto
    Sans CJK has other outlines, which strict readers of PDF refuse; WenQuanYi Zen Hei has the same characters
    and is preferred where it is installed. Characters that no installed font has are drawn as boxes, and a
    warning says which font to install.

    Args:
        figure: What to write.
        path: The file.
        dpi: Dots an inch, of formats that have dots.

    Raises:
        ValueError: There is no such format, or the picture would have too many dots or none.
    """
    size = max(figure.get_size_inches())
    if not 1 <= dpi * size < _MOST_DOTS:
        raise ValueError(
            f"dpi must be from 1 to {int(_MOST_DOTS / size) - 1} for a picture of this size, was {dpi:g}"
        )
    _write(figure, path, dpi=dpi)


def _write(figure: Figure, to: Path | str | IO[bytes], **options: Any) -> None:
    """Write an image, and warn of characters that no installed font has."""
    texts = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    for family in fonts_to_install(texts):
        warnings.warn(
            f"no installed font has all characters of the labels, so some are boxes: install {family}",
            stacklevel=3,
        )
    # In PDF and PostScript TrueType, in SVG text that can be edited.
    fonts: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
    with warnings.catch_warnings(), mpl.rc_context(fonts):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # said above
        figure.savefig(to, **options)
