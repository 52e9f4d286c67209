"""Draw what an encoder returns: attention, head scores, rollout and similarity.

Queries are rows, keys are columns. Shape letters: T tokens, H heads, L layers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polyhead_client import Encoding
from polyhead_view.figures import FONT_SIZE, add_bar, draw_map, label, margin, names, side, weight_scale
from polyhead_view.similarity import Similarity

_MOST_IN_A_ROW = 12
_WIDEST = 24.0
"""The width of a row of maps, in inches."""
_MOST_SIDE = 4.0
"""The side of one of several maps, in inches: at 150 dots an inch each of 512 tokens has a dot of its own."""
_KEY, _QUERY = "key: the token that is attended to", "query: the token that attends"
_BAR_COLOUR = "#4c6a92"
_BATCH = "encoding must be of one sequence, was of a batch"


def draw_heads(
    encoding: Encoding,
    *,
    layer: int,
    columns: int | None = None,
    cross: bool = False,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
) -> Figure:
    """Draw the attention weights of one sequence: a heat map for each head.

    All maps share one colour scale, from 0 to the largest weight. Heads that were pruned are blank.

    Args:
        encoding: The encoding of a single sequence, with the attention of `layer`.
        layer: The layer to draw.
        columns: Heat maps per row; None means one row where up to 12 heads fit, and otherwise rows of equal
            length.
        cross: Whether to draw the attention of a decoder block to its memory.
        query_labels: The labels of all T queries; None means the tokens, or their positions.
        key_labels: The labels of the keys, likewise.

    Raises:
        ValueError: The encoding has no such attention, or is that of a batch, or labels do not fit it.
    """
    weights = _attention(encoding, layer, cross=cross)
    heads, _, keys = weights.shape
    width = side(keys) if heads == 1 else side(keys, _MOST_SIDE)
    if columns is None:
        fitting = max(1, min(_MOST_IN_A_ROW, int(_WIDEST / width)))
        columns = math.ceil(heads / math.ceil(heads / fitting))
    columns = min(columns, heads)
    rows = math.ceil(heads / columns)

    labels, queries = _labels(encoding, weights, query_labels, key_labels)
    height = width * len(queries) / keys
    room = margin(labels)
    size = (columns * (width + 0.12) + room + 1.1, rows * (height + 0.3) + room + 0.75)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    scale = weight_scale(_most(weights), keys)
    for axis, head, number in zip(axes.flat, weights, encoding.heads or range(heads), strict=False):
        pruned = encoding.is_pruned(layer, number)
        image = draw_map(axis, np.full_like(head, np.nan) if pruned else head, scale)
        if pruned:
            axis.text(0.5, 0.5, "pruned", size=FONT_SIZE, ha="center", va="center", transform=axis.transAxes)
        axis.set_box_aspect(height / width)
        axis.set_title(f"head {number}", fontsize=FONT_SIZE, pad=3)
        label(axis.xaxis, labels, width, rotation=90)
        label(axis.yaxis, queries, height, rotation=0)
    for axis in axes.flat[heads:]:
        axis.set_visible(False)
    figure.supxlabel(_KEY, fontsize=FONT_SIZE)
    figure.supylabel(_QUERY, fontsize=FONT_SIZE)
    add_bar(figure, image, axes, "norm-weighted" if encoding.weighted else "weight")
    what = "norm-weighted attention" if encoding.weighted else "attention weights"
    where = " to the memory" if cross else ""
    _title(figure, encoding.model, encoding.version, f"{what}{where} of layer {layer}")
    return figure


def draw_pair(
    a: Encoding,
    b: Encoding,
    *,
    layer: int,
    head: int,
    titles: tuple[str, str] = ("", ""),
    shared_scale: bool = True,
) -> Figure:
    """Draw one head for two encodings side by side: of two inputs, or raw and norm-weighted.

    Args:
        a: The encoding of a single sequence, with this head.
        b: The other.
        layer: The layer of the head.
        head: Its number.
        titles: What to write over the maps.
        shared_scale: Whether both maps share one colour scale. Norm-weighted maps need one of their own.

    Raises:
        ValueError: An encoding has no such attention, or is that of a batch.
    """
    maps = [_head(encoding, layer, head) for encoding in (a, b)]
    labels = [_labels(encoding, weights) for encoding, weights in zip((a, b), maps, strict=True)]
    widths = [side(weights.shape[1], 6.0) for weights in maps]
    heights = [width * len(weights) / weights.shape[1] for width, weights in zip(widths, maps, strict=True)]
    room = max(margin(keys) for keys, _ in labels)
    size = (sum(widths) + 2 * room + 2.2, max(heights) + room + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=widths)
    for axis, weights, title, width, height, (keys, queries) in zip(
        axes, maps, titles, widths, heights, labels, strict=True
    ):
        most = _most(*maps) if shared_scale else _most(weights)
        longest = max(len(keys) for keys, _ in labels) if shared_scale else len(keys)
        image = draw_map(axis, weights, weight_scale(most, longest))
        axis.set_box_aspect(height / width)
        axis.set_title(title, fontsize=FONT_SIZE, pad=3, parse_math=False)
        label(axis.xaxis, keys, width, rotation=90)
        label(axis.yaxis, queries, height, rotation=0)
        if not shared_scale:
            add_bar(figure, image, axis, "")
    if shared_scale:
        add_bar(figure, image, axes, "weight")
    figure.supxlabel(_KEY, fontsize=FONT_SIZE)
    figure.supylabel(_QUERY, fontsize=FONT_SIZE)
    _title(figure, a.model, a.version, f"head {head} of layer {layer}")
    return figure


def draw_scores(
    values: NDArray[Any],
    *,
    title: str,
    layers: Sequence[int] | None = None,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw a score of every head as a map: layers are rows, heads are columns.

    Cells have their numbers where there are up to 24 heads; undefined ones are grey.

    Args:
        values: [L, H], such as `encoding.scores["entropy"]`.
        title: What it is.
        layers: The numbers of the layers; None means 0 to L - 1.
        limits: The ends of the colour scale; None means from 0, or the least value below it, to the largest.

    Raises:
        ValueError: The shape is not [L, H], or does not fit `layers`.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"values must be [L, H], was {list(values.shape)}")
    rows = list(range(len(values)) if layers is None else layers)
    if len(rows) != len(values):
        raise ValueError(f"layers must be {len(values)} numbers, one for each row of values, was {rows}")
    low, high = limits or (min(0.0, float(np.nanmin(values, initial=0.0))), _most(values))
    numbered = values.shape[1] <= 24
    cell = 0.36 if numbered else 0.16
    figure = Figure(
        figsize=(values.shape[1] * cell + 1.5, len(values) * min(cell, 0.26) + 1.0), layout="constrained"
    )
    axis = figure.subplots()
    image = draw_map(axis, values, Normalize(low, high), colours="cividis")
    if numbered:
        middle = (low + high) / 2
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "black" if value > middle else "white"
                axis.text(
                    column, row, f"{value:.2f}", color=colour, size=FONT_SIZE - 1, ha="center", va="center"
                )
    label(axis.xaxis, [str(head) for head in range(values.shape[1])], values.shape[1] * cell, rotation=0)
    label(axis.yaxis, [str(row) for row in rows], len(rows) * min(cell, 0.26), rotation=0)
    axis.set_xlabel("head", fontsize=FONT_SIZE)
    axis.set_ylabel("layer", fontsize=FONT_SIZE)
    add_bar(figure, image, axis, "")
    figure.suptitle(title, fontsize=FONT_SIZE + 1, parse_math=False)
    return figure


def draw_contacts(encoding: Encoding) -> Figure:
    """Draw the probability of a contact of each pair of residues of a protein, from 0 to 1.

    Args:
        encoding: The encoding of a single sequence, with its contacts.

    Raises:
        ValueError: The encoding has no contacts, or is that of a batch.
    """
    contacts = encoding.contacts
    if contacts is None:
        raise ValueError("encoding must have contacts: encode with contacts=True")
    if not isinstance(contacts, np.ndarray) or contacts.ndim != 2:
        raise ValueError(_BATCH)
    labels = names(encoding.tokens, len(contacts))  # type: ignore[arg-type]
    width, room = side(len(contacts)), margin(labels)
    figure = Figure(figsize=(width + room + 1.4, width + room + 0.8), layout="constrained")
    axis = figure.subplots()
    image = draw_map(axis, contacts, Normalize(0, 1))
    axis.set_box_aspect(1)
    label(axis.xaxis, labels, width, rotation=90)
    label(axis.yaxis, labels, width, rotation=0)
    add_bar(figure, image, axis, "probability of a contact")
    _title(figure, encoding.model, encoding.version, "contacts")
    return figure


def draw_rollout(encoding: Encoding, *, query: int | None = None) -> Figure:
    """Draw attention rollout: how much each token gets from each input token through all layers.

    Args:
        encoding: The encoding of a single sequence, with its rollout.
        query: The position of one token, -1 is the last: bars instead of the whole map; None means all.

    Raises:
        ValueError: The encoding has no rollout, is that of a batch, or has no such position.
    """
    rollout = encoding.rollout
    if rollout is None:
        raise ValueError("encoding must have a rollout: encode with rollout=True")
    if not isinstance(rollout, np.ndarray) or rollout.ndim != 2:
        raise ValueError(_BATCH)
    tokens = len(rollout)
    labels = names(encoding.tokens, tokens)  # type: ignore[arg-type]
    width, room = side(tokens), margin(labels)
    if query is not None and not -tokens <= query < tokens:
        raise ValueError(f"query must be between {-tokens} and {tokens - 1}, was {query}")
    figure = Figure(
        figsize=(width + room + 1.4, (2.0 if query is not None else width) + room + 0.8), layout="constrained"
    )
    axis = figure.subplots()
    if query is None:
        image = draw_map(axis, rollout, weight_scale(_most(rollout), tokens))
        axis.set_box_aspect(1)
        label(axis.yaxis, labels, width, rotation=0)
        axis.set_ylabel("output token", fontsize=FONT_SIZE)
        add_bar(figure, image, axis, "rollout")
        what = "attention rollout through all layers"
    else:
        at = query % tokens
        axis.bar(range(tokens), rollout[at], color=_BAR_COLOUR)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=FONT_SIZE)
        axis.set_xlim(-0.6, tokens - 0.4)
        axis.set_ylabel("rollout", fontsize=FONT_SIZE)
        what = f"attention rollout of token {at}, {labels[at]}, through all layers"
    label(axis.xaxis, labels, width, rotation=90)
    axis.set_xlabel("input token", fontsize=FONT_SIZE)
    _title(figure, encoding.model, encoding.version, what)
    return figure


def draw_similarity(similarity: Similarity) -> Figure:
    """Draw what each pair of tokens adds to the similarity of two texts, with the sums of each token.

    Orange pairs add to the similarity, purple ones take from it. The bars are the sums of rows and columns.
    """
    values = similarity.contributions
    rows, columns = (
        names(tokens, count) for tokens, count in zip(similarity.tokens, values.shape, strict=True)
    )
    width, height = side(len(columns)), side(len(rows))
    size = (width + margin(rows) + 2.2, height + margin(columns) + 1.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(
        2, 2, sharex="col", sharey="row", width_ratios=(width, 0.6), height_ratios=(0.6, height)
    )
    most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    image = draw_map(axes[1, 0], values, Normalize(-most, most), colours="PuOr_r")
    axes[0, 0].bar(range(len(columns)), values.sum(0), color=_BAR_COLOUR)
    axes[1, 1].barh(range(len(rows)), values.sum(1), color=_BAR_COLOUR)
    axes[0, 1].set_visible(False)
    for axis in (axes[0, 0], axes[1, 1]):
        axis.tick_params(labelsize=FONT_SIZE - 1, length=2, pad=1)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].tick_params(bottom=False)
    axes[1, 1].tick_params(left=False)
    label(axes[1, 0].xaxis, columns, width, rotation=90)
    label(axes[1, 0].yaxis, rows, height, rotation=0)
    add_bar(figure, image, axes[1, :], f"contribution to the {similarity.measure}")
    _title(
        figure,
        similarity.model,
        similarity.version,
        f"{similarity.measure} {similarity.value:.3f}, split over pairs of tokens",
    )
    return figure


def _attention(encoding: Encoding, layer: int, *, cross: bool = False) -> NDArray[Any]:
    """Return [H, T_query, T_key]."""
    attention = encoding.cross_attention if cross else encoding.attention
    if attention is None or layer not in attention:
        raise ValueError(f"layer must be one of {list(attention or ())}, was {layer}")
    weights = attention[layer]
    if not isinstance(weights, np.ndarray) or weights.ndim != 3:
        raise ValueError(_BATCH)
    return weights


def _head(encoding: Encoding, layer: int, head: int) -> NDArray[Any]:
    weights = _attention(encoding, layer)
    numbers = list(encoding.heads or range(len(weights)))
    if head not in numbers or encoding.is_pruned(layer, head):
        left = [number for number in numbers if not encoding.is_pruned(layer, number)]
        raise ValueError(f"head must be one of {left}, was {head}")
    found: NDArray[Any] = weights[numbers.index(head)]
    return found


def _labels(
    encoding: Encoding,
    weights: NDArray[Any],
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> tuple[list[str], list[str]]:
    """Return the labels of the keys and of the queries of [..., T_query, T_key]."""
    rows, columns = weights.shape[-2:]
    chosen = range(rows) if encoding.queries is None else encoding.queries
    tokens: Any = encoding.tokens  # of a sequence that attends to itself
    if keys is not None and len(keys) != columns:
        raise ValueError(f"key_labels must be {columns}, one for each key, were {len(keys)}")
    if queries is not None and len(queries) <= max(chosen):
        raise ValueError(
            f"query_labels must be one for each query, more than {max(chosen)}, were {len(queries)}"
        )
    labels = names(queries or tokens, max(chosen) + 1)
    return names(keys or tokens, columns), [labels[at] for at in chosen]


def _most(*arrays: NDArray[Any]) -> float:
    """Return the largest value, for the upper end of a scale."""
    return max(float(np.nanmax(values, initial=0.0)) for values in arrays) or 1.0


def _title(figure: Figure, model: str, version: str, what: str) -> None:
    figure.suptitle(f"{model}, version {version}\n{what}", fontsize=FONT_SIZE + 1, parse_math=False)
