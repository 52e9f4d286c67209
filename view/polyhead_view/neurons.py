"""Draw how a score comes about, neuron by neuron, as BertViz's neuron view does.

See [Vig 2019](https://arxiv.org/abs/1906.05714). Shape letters: S keys, K head width.
"""

from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from polyhead_client import Encoding
from polyhead_view.drawable import maps_of
from polyhead_view.figures import (
    BAR_COLOUR,
    FONT_SIZE,
    PITCH,
    Colours,
    Picture,
    add_bar,
    draw_map,
    label,
    margin,
    set_title,
)

_NEURON, _NARROWEST, _WIDEST = 0.07, 1.6, 3.2
"""The width of a neuron, and the limits of that of a panel, in inches."""
_TALLEST = 20.0
"""The most height of a panel, in inches."""
_BARS = 0.8
"""The width of a panel of bars, in inches."""


def draw_neurons(
    record: Encoding,
    *,
    query: int,
    layer: int | None = None,
    head: int | None = None,
    title: str | None = None,
    colours: Colours | None = None,
) -> Figure:
    """Draw how the scores of one query come about: q, the keys, their products, and what these add up to.

    A row is a key, and q stands above. The products of their neurons sum to √K times the score, and the
    softmax of the scores gives the weights. Relative positions add to a score what is not shown. Orange is
    positive, purple negative.

    Args:
        record: From `attention_of`, of a single sequence.
        query: The position of the token that attends, -1 is the last.
        layer: The layer of the head; None means the only one.
        head: Its number; None means the only one.
        title: The title; None means who computed it and what is shown, "" none.
        colours: A colour map of matplotlib for values around 0.

    Raises:
        ValueError: The record has no vectors of queries and keys, is that of a batch, or has no such head or
            position; or there is no such colour map.
    """
    if record.query_vectors is None or record.key_vectors is None:
        raise ValueError(
            "record must have the vectors of queries and keys: a server does not send them, attention_of "
            "records them"
        )
    maps = maps_of(record, layer).of_head(head)
    number, keys, tokens = maps.heads[0], maps.keys, len(maps.queries)
    if not -tokens <= query < tokens:
        raise ValueError(f"query must be between {-tokens} and {tokens - 1}, was {query}")
    at = query % tokens
    query_vectors, k = (
        np.asarray(each[maps.layer])[number] for each in (record.query_vectors, record.key_vectors)
    )
    scale = np.sqrt(k.shape[1])  # by which the vectors of queries are divided already
    q = query_vectors[at : at + 1] * scale
    products = q * k
    visible = np.ones(len(keys), bool) if maps.visible is None else maps.visible[0, at]

    width = min(max(q.shape[1] * _NEURON, _NARROWEST), _WIDEST)
    height = min(max(len(keys) * PITCH * 1.25, 1.0), _TALLEST)
    figure = Picture(figsize=(2 * width + 2 * _BARS + margin(keys) + 2.2, height + 1.5), layout="constrained")
    ratios: dict[str, Any] = {"width_ratios": (width, width, _BARS, _BARS), "height_ratios": (0.25, height)}
    axes = figure.subplots(2, 4, sharex="col", sharey="row", **ratios)
    shown = np.broadcast_to(visible[:, None], k.shape)
    vectors, sums = (_around_zero(*arrays) for arrays in ((q, k), (products,)))
    for axis, values, scale_of, seen in (
        (axes[0, 0], q, vectors, None),
        (axes[1, 0], k, vectors, shown),
        (axes[1, 1], products, sums, shown),
    ):
        image = draw_map(axis, values, scale_of, colours=colours or "PuOr_r", visible=seen)
        axis.tick_params(labelsize=FONT_SIZE - 1, length=2, pad=1)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axis in axes[1]:
            add_bar(figure, image, axis, "", height=height)
    for axis, values, name in (
        (axes[1, 2], products.sum(1) / scale, "score: sum / √K"),
        (axes[1, 3], maps.weights[0, at], "weight: softmax"),
    ):
        axis.barh(np.flatnonzero(visible), values[visible], color=BAR_COLOUR)
        axis.axvline(0, color="black", linewidth=0.5)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False, labelsize=FONT_SIZE - 1, length=2, pad=1)
        axis.set_xlabel(name, fontsize=FONT_SIZE)
    for axis in axes[0, 1:]:
        axis.set_visible(False)
    axes[0, 0].tick_params(bottom=False, left=False, labelleft=False)
    axes[0, 0].set_ylabel("q", fontsize=FONT_SIZE, rotation=0, ha="right", va="center")
    some = label(axes[1, 0].yaxis, keys, height, rotation=0)
    axes[1, 0].set_ylabel(f"key{some}{'' if visible.all() else '; hatched: masked'}", fontsize=FONT_SIZE)
    axes[1, 0].set_xlabel("k, by neuron", fontsize=FONT_SIZE)
    axes[1, 1].set_xlabel("q × k, by neuron", fontsize=FONT_SIZE)
    set_title(
        figure,
        title,
        maps.source,
        f"how “{maps.queries[at]}” (token {at}) scores its keys in head {number}{maps.place}",
    )
    return figure


def _around_zero(*arrays: NDArray[Any]) -> Normalize:
    """Return a scale for values around 0."""
    most = max(float(np.abs(values).max(initial=0)) for values in arrays) or 1.0
    return Normalize(-most, most)
