"""Draw attention weights: the heads of a layer, one head, or two side by side.

Queries are rows, keys are columns. Shape letters: T queries, S keys, H heads, L layers.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

from polyhead_client import Encoding
from polyhead_view.drawable import LayerMaps, encoding_of, maps_of
from polyhead_view.explorer import saved
from polyhead_view.figures import (
    FONT_SIZE,
    KEY,
    LEAST_HEIGHT,
    LINE,
    QUERY,
    Colours,
    Picture,
    add_bar,
    draw_map,
    label,
    margin,
    set_title,
    side,
    weight_scale,
    wrapped,
    write_values,
)

_WIDEST = 9.0
"""The width of a row of maps, in inches: that of a page, so that labels can be read on a screen, too."""
_MOST_SIDE = 4.0
"""The side of one of several maps, in inches: at 150 dots an inch each of 512 tokens has a dot of its own."""
_CELL, _SMALLEST = 0.36, 3.2
"""The side of a cell of one large map, and the least side of that, in inches."""
_MOST_NUMBERED = 20
"""The most keys of a large map whose cells have their numbers."""

Drawable = Encoding | ArrayLike


def draw_heads(
    attention: Drawable,
    *,
    layer: int | None = None,
    columns: int | None = None,
    cross: bool = False,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    mask: ArrayLike | None = None,
    title: str | None = None,
    colours: Colours | None = None,
) -> Figure:
    """Draw the attention weights of one sequence: a heat map for each head.

    All maps share one colour scale, from 0 to the largest weight. Masked cells are hatched. Heads that were
    pruned are blank.

    Args:
        attention: The encoding of a single sequence, what `attention_of` recorded, or an array or tensor of
            weights [H, T, S] or [L, H, T, S], of which NaN and -inf are masked.
        layer: The layer to draw; None means the only one.
        columns: Heat maps per row; None means rows of equal length that fit on a page.
        cross: Whether to draw the attention of a decoder block to its memory.
        tokens: The labels of all queries, and of the keys; None means the tokens, or their positions.
        key_tokens: The labels of the keys, where these are of another sequence.
        mask: Boolean [T, S] or [H, T, S], True = may attend; None means what is known of `attention`.
        title: The title; None means who computed it and what is shown, "" none.
        colours: A colour map of matplotlib; None means viridis.

    Raises:
        ValueError: There is no such attention, or it is that of a batch, or of no such shape; labels or mask
            do not fit it; or there is no such colour map.
    """
    maps = maps_of(attention, layer, cross=cross, tokens=tokens, key_tokens=key_tokens, mask=mask)
    heads, _, keys = maps.weights.shape
    width = side(keys) if heads == 1 else side(keys, _MOST_SIDE)
    if columns is None:
        fitting = max(1, int(_WIDEST / width))
        columns = math.ceil(heads / math.ceil(heads / fitting))
    columns = min(columns, heads)
    rows = math.ceil(heads / columns)
    height = width * len(maps.queries) / keys
    size = (
        columns * (width + 0.12) + margin(maps.queries) + 1.1,
        max(rows * (height + 0.3) + margin(maps.keys) + 0.75, LEAST_HEIGHT),
    )
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    most = _most(maps)
    for at, (axis, number) in enumerate(zip(axes.flat, maps.heads, strict=False)):
        image, named = _draw(axis, maps, at, (width, height), most=most, colours=colours)
        if number in maps.pruned:
            axis.text(0.5, 0.5, "pruned", size=FONT_SIZE, ha="center", va="center", transform=axis.transAxes)
        axis.set_title(f"head {number}", fontsize=FONT_SIZE, pad=3)
    for axis in axes.flat[heads:]:
        axis.set_visible(False)
    for axis in axes.flat[heads - columns : heads]:  # below some, the last row has no map
        axis.tick_params(labelbottom=True)
    figure.supxlabel(wrapped(named[0], size[0]), fontsize=FONT_SIZE)
    figure.supylabel(wrapped(named[1], size[1]), fontsize=FONT_SIZE)
    add_bar(figure, image, axes, _kind(maps), masked=_is_masked(maps))
    to = " to the memory" if cross else ""
    set_title(figure, title, maps.source, f"{_what(maps)}{to}{maps.place}")
    return figure


def draw_head(
    attention: Drawable,
    *,
    layer: int | None = None,
    head: int | None = None,
    cross: bool = False,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    mask: ArrayLike | None = None,
    title: str | None = None,
    colours: Colours | None = None,
) -> Figure:
    """Draw the attention weights of one head, large; with their numbers, up to 20 keys.

    Args:
        attention: See `draw_heads`; also [T, S].
        layer: The layer of the head; None means the only one.
        head: Its number; None means the only one.
        cross: See `draw_heads`, as for all that follow.
        tokens: The labels of all queries, and of the keys.
        key_tokens: The labels of the keys, where these are of another sequence.
        mask: What is not masked.
        title: The title.
        colours: A colour map of matplotlib.

    Raises:
        ValueError: As for `draw_heads`; or there is no such head.
    """
    layers = maps_of(attention, layer, cross=cross, tokens=tokens, key_tokens=key_tokens, mask=mask)
    maps = layers.of_head(head)
    rows, keys = len(maps.queries), len(maps.keys)
    width = min(max(keys * _CELL, _SMALLEST), side(keys, 8.0) if keys > _MOST_NUMBERED else 8.0)
    height = width * rows / keys
    size = (width + margin(maps.queries) + 1.2, max(height + margin(maps.keys) + 1.0, LEAST_HEIGHT))
    figure = Picture(figsize=size, layout="constrained")
    axis = figure.subplots()
    image, named = _draw(axis, maps, 0, (width, height), most=_most(maps), colours=colours)
    if keys <= _MOST_NUMBERED:
        visible = True if maps.visible is None else maps.visible[0]
        write_values(axis, image, maps.weights[0], visible)
    axis.set_xlabel(wrapped(named[0], size[0]), fontsize=FONT_SIZE)
    axis.set_ylabel(wrapped(named[1], size[1]), fontsize=FONT_SIZE)
    add_bar(figure, image, axis, _kind(maps), masked=_is_masked(maps))
    which = f"head {maps.heads[0]}{maps.place}" if len(layers.heads) > 1 or maps.place else ""
    set_title(figure, title, maps.source, f"{_what(maps)}{' of ' if which else ''}{which}")
    return figure


def draw_pair(
    a: Drawable,
    b: Drawable,
    *,
    layer: int | None = None,
    head: int | None = None,
    titles: tuple[str, str] = ("", ""),
    shared_scale: bool = True,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    mask: ArrayLike | None = None,
    title: str | None = None,
    colours: Colours | None = None,
) -> Figure:
    """Draw one head twice, side by side: of two inputs or encoders, or raw and norm-weighted.

    Args:
        a: See `draw_head`, of a single sequence, with this head.
        b: The other.
        layer: The layer of the head; None means the only one.
        head: Its number; None means the only one.
        titles: What to write over the maps. Where two encoders computed them, their names come first.
        shared_scale: Whether both maps share one colour scale. Norm-weighted maps need one of their own.
        tokens: The labels of all queries of both; see `draw_heads`, as for all that follow.
        key_tokens: The labels of the keys of both.
        mask: What is not masked, of both.
        title: The title.
        colours: A colour map of matplotlib.

    Raises:
        ValueError: As for `draw_head`.
    """
    pair = [
        maps_of(each, layer, tokens=tokens, key_tokens=key_tokens, mask=mask).of_head(head) for each in (a, b)
    ]
    sources = [each.source for each in pair]
    if sources[0] != sources[1]:
        titles = (
            ": ".join(filter(None, (sources[0], titles[0]))),
            ": ".join(filter(None, (sources[1], titles[1]))),
        )
    widths = [side(len(maps.keys), 6.0) for maps in pair]
    heights = [width * len(maps.queries) / len(maps.keys) for width, maps in zip(widths, pair, strict=True)]
    room = max(margin(maps.queries) for maps in pair)
    over_maps = [wrapped(over, width + room + 0.6) for over, width in zip(titles, widths, strict=True)]
    below, lines = max(margin(maps.keys) for maps in pair), max(over.count("\n") for over in over_maps)
    above = 0.3 + LINE * lines if lines else 0.0
    size = (sum(widths) + 2 * room + 2.2, max(max(heights) + below + 1.0, LEAST_HEIGHT) + above)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=widths)
    longest = max(len(maps.keys) for maps in pair)
    for axis, maps, over, width, height in zip(axes, pair, over_maps, widths, heights, strict=True):
        most, keys = (_most(*pair), longest) if shared_scale else (_most(maps), len(maps.keys))
        image, named = _draw(axis, maps, 0, (width, height), most=most, keys=keys, colours=colours)
        axis.set_title(over, fontsize=FONT_SIZE, pad=3, parse_math=False)
        axis.set_xlabel(named[0].removeprefix(KEY).strip(), fontsize=FONT_SIZE)
        axis.set_ylabel(named[1].removeprefix(QUERY).strip(), fontsize=FONT_SIZE)
        if not shared_scale:
            add_bar(figure, image, axis, "", masked=_is_masked(maps))
    if shared_scale:
        add_bar(figure, image, axes, "weight", masked=any(map(_is_masked, pair)))
    figure.supxlabel(KEY, fontsize=FONT_SIZE)
    figure.supylabel(QUERY, fontsize=FONT_SIZE)
    who = sources[0] if sources[0] == sources[1] else ""
    number = pair[0].heads[0]
    set_title(figure, title, who, f"head {number}{pair[0].place}")
    return figure


def show(
    attention: Drawable,
    *,
    layer: int | None = None,
    head: int | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    mask: ArrayLike | None = None,
) -> Any:
    """Return all heads of one sequence for a notebook, as `Encoding.show` does.

    Args:
        attention: See `draw_heads`.
        layer: The layer of the head to open; None means the first.
        head: The number of the head to open; None means the first.
        tokens: The labels of all queries, and of the keys; None means the tokens, or their positions.
        key_tokens: The labels of the keys, where these are of another sequence.
        mask: See `draw_heads`.

    Raises:
        ValueError: As for `draw_heads`.
    """
    encoding = encoding_of(attention, tokens)
    if tokens is not None:
        encoding = replace(encoding, tokens=list(map(str, tokens)))
    return saved.show(encoding, layer=layer, head=head, key_tokens=key_tokens, mask=mask)


def _draw(
    axis: Axes,
    maps: LayerMaps,
    at: int,
    size: tuple[float, float],
    *,
    most: float,
    keys: int | None = None,
    colours: Colours | None,
) -> tuple[AxesImage, tuple[str, str]]:
    """Draw one head's map of a size in inches.

    Returns:
        The map, and the names of its axes.
    """
    width, height = size
    weights = maps.weights[at]
    pruned = maps.heads[at] in maps.pruned
    image = draw_map(
        axis,
        np.full_like(weights, np.nan) if pruned else weights,
        weight_scale(most, keys or len(maps.keys)),
        colours=colours or "viridis",
        visible=None if maps.visible is None or pruned else maps.visible[at],
    )
    axis.set_box_aspect(height / width)
    some = label(axis.xaxis, maps.keys, width, rotation=90)
    others = label(axis.yaxis, maps.queries, height, rotation=0)
    return image, (f"{KEY}{some}", f"{QUERY}{others}")


def _most(*maps: LayerMaps) -> float:
    """Return the largest weight, for the upper end of a scale."""
    return max(float(np.nanmax(each.weights, initial=0.0)) for each in maps) or 1.0


def _is_masked(maps: LayerMaps) -> bool:
    return maps.visible is not None and not maps.visible.all()


def _kind(maps: LayerMaps) -> str:
    return "norm-weighted" if maps.weighted else "weight"


def _what(maps: LayerMaps) -> str:
    return "norm-weighted attention" if maps.weighted else "attention weights"
