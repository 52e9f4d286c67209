"""Draw what an encoder returns: head scores, rollout, contacts and similarity.

Queries are rows, keys are columns. Shape letters: T tokens, H heads, L layers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polyhead_client import Encoding
from polyhead_view.drawable import BATCH, named
from polyhead_view.figures import (
    BAR_COLOUR,
    FONT_SIZE,
    Colours,
    Picture,
    add_bar,
    draw_map,
    label,
    margin,
    set_title,
    side,
    weight_scale,
    write_values,
)
from polyhead_view.similarity import Similarity


def draw_scores(
    values: NDArray[Any],
    *,
    title: str,
    layers: Sequence[int] | None = None,
    limits: tuple[float, float] | None = None,
    colours: Colours | None = None,
) -> Figure:
    """Draw a score of every head as a map: layers are rows, heads are columns.

    Cells have their numbers where there are up to 24 heads; undefined ones are grey.

    Args:
        values: [L, H], such as `encoding.scores["entropy"]`.
        title: What it is; "" for none.
        layers: The numbers of the layers; None means 0 to L - 1.
        limits: The ends of the colour scale; None means from 0, or the least value below it, to the largest.
        colours: A colour map of matplotlib.

    Raises:
        ValueError: The shape is not [L, H], or does not fit `layers`; or there is no such colour map.
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
    width, height = values.shape[1] * cell, len(values) * min(cell, 0.26)
    figure = Picture(figsize=(width + 1.5, height + 1.0), layout="constrained")
    axis = figure.subplots()
    image = draw_map(axis, values, Normalize(low, high), colours=colours or "cividis")
    if numbered:
        write_values(axis, image, values)
    label(axis.xaxis, [str(head) for head in range(values.shape[1])], width, rotation=0)
    label(axis.yaxis, [str(row) for row in rows], height, rotation=0)
    axis.set_xlabel("head", fontsize=FONT_SIZE)
    axis.set_ylabel("layer", fontsize=FONT_SIZE)
    add_bar(figure, image, axis, "", height=height)
    set_title(figure, title)
    return figure


def draw_contacts(encoding: Encoding, *, title: str | None = None, colours: Colours | None = None) -> Figure:
    """Draw the probability of a contact of each pair of residues of a protein, from 0 to 1.

    Args:
        encoding: The encoding of a single sequence, with its contacts.
        title: The title; None means who answered and what is shown, "" none.
        colours: A colour map of matplotlib.

    Raises:
        ValueError: The encoding has no contacts, or is that of a batch; or there is no such colour map.
    """
    contacts = encoding.contacts
    if contacts is None:
        raise ValueError("encoding must have contacts: encode with contacts=True")
    if not isinstance(contacts, np.ndarray) or contacts.ndim != 2:
        raise ValueError(BATCH)
    labels = named(encoding.tokens, len(contacts))  # type: ignore[arg-type]
    width, room = side(len(contacts)), margin(labels)
    figure = Picture(figsize=(width + room + 1.4, width + room + 0.8), layout="constrained")
    axis = figure.subplots()
    image = draw_map(axis, contacts, Normalize(0, 1), colours=colours or "viridis")
    axis.set_box_aspect(1)
    some = label(axis.xaxis, labels, width, rotation=90)
    label(axis.yaxis, labels, width, rotation=0)
    if some:
        axis.set_xlabel(some.strip(), fontsize=FONT_SIZE)
    add_bar(figure, image, axis, "probability of a contact")
    set_title(figure, title, encoding.source, "contacts")
    return figure


def draw_rollout(
    encoding: Encoding,
    *,
    query: int | None = None,
    title: str | None = None,
    colours: Colours | None = None,
) -> Figure:
    """Draw attention rollout: how much each token gets from each input token through all layers.

    Args:
        encoding: The encoding of a single sequence, with its rollout.
        query: The position of one token, -1 is the last: bars instead of the whole map; None means all.
        title: The title; None means who answered and what is shown, "" none.
        colours: A colour map of matplotlib.

    Raises:
        ValueError: The encoding has no rollout, is that of a batch, or has no such position; or there is no
            such colour map.
    """
    rollout = encoding.rollout
    if rollout is None:
        raise ValueError("encoding must have a rollout: encode with rollout=True")
    if not isinstance(rollout, np.ndarray) or rollout.ndim != 2:
        raise ValueError(BATCH)
    tokens = len(rollout)
    labels = named(encoding.tokens, tokens)  # type: ignore[arg-type]
    width, room = side(tokens), margin(labels)
    if query is not None and not -tokens <= query < tokens:
        raise ValueError(f"query must be between {-tokens} and {tokens - 1}, was {query}")
    figure = Picture(
        figsize=(width + room + 1.4, (2.0 if query is not None else width) + room + 0.8), layout="constrained"
    )
    axis = figure.subplots()
    if query is None:
        image = draw_map(axis, rollout, weight_scale(_most(rollout), tokens), colours=colours or "viridis")
        axis.set_box_aspect(1)
        some = label(axis.yaxis, labels, width, rotation=0)
        axis.set_ylabel(f"output token{some}", fontsize=FONT_SIZE)
        add_bar(figure, image, axis, "rollout")
        what = "attention rollout through all layers"
    else:
        at = query % tokens
        axis.bar(range(tokens), rollout[at], color=BAR_COLOUR)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=FONT_SIZE)
        axis.set_xlim(-0.6, tokens - 0.4)
        axis.set_ylabel("rollout", fontsize=FONT_SIZE)
        what = f"attention rollout of token {at}, {labels[at]}, through all layers"
    some = label(axis.xaxis, labels, width, rotation=90)
    axis.set_xlabel(f"input token{some}", fontsize=FONT_SIZE)
    set_title(figure, title, encoding.source, what)
    return figure


def draw_similarity(
    similarity: Similarity, *, title: str | None = None, colours: Colours | None = None
) -> Figure:
    """Draw what each pair of tokens adds to the similarity of two texts, with the sums of each token.

    Orange pairs add to the similarity, purple ones take from it. The bars are the sums of rows and columns.

    Args:
        similarity: From `explain_similarity`.
        title: The title; None means who answered and what is shown, "" none.
        colours: A colour map of matplotlib for values around 0.

    Raises:
        ValueError: There is no such colour map.
    """
    values = similarity.contributions
    rows, columns = (
        named(tokens, count) for tokens, count in zip(similarity.tokens, values.shape, strict=True)
    )
    width, height = side(len(columns)), side(len(rows))
    size = (width + margin(rows) + 2.2, height + margin(columns) + 1.6)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(
        2, 2, sharex="col", sharey="row", width_ratios=(width, 0.6), height_ratios=(0.6, height)
    )
    most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    image = draw_map(axes[1, 0], values, Normalize(-most, most), colours=colours or "PuOr_r")
    axes[0, 0].bar(range(len(columns)), values.sum(0), color=BAR_COLOUR)
    axes[1, 1].barh(range(len(rows)), values.sum(1), color=BAR_COLOUR)
    axes[0, 1].set_visible(False)
    for axis in (axes[0, 0], axes[1, 1]):
        axis.tick_params(labelsize=FONT_SIZE - 1, length=2, pad=1)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].tick_params(bottom=False)
    axes[1, 1].tick_params(left=False)
    axes[1, 1].locator_params(axis="x", nbins=2)  # there is no room for more
    for axis_, name, texts, inches, rotation in (
        (axes[1, 0].xaxis, "second", columns, width, 90),
        (axes[1, 0].yaxis, "first", rows, height, 0),
    ):
        if some := label(axis_, texts, inches, rotation=rotation):
            axis_.set_label_text(f"{name} text{some}", fontsize=FONT_SIZE)
    add_bar(figure, image, axes[1, :], f"contribution to the {similarity.measure}")
    set_title(
        figure,
        title,
        f"{similarity.model}, version {similarity.version}",
        f"{similarity.measure} {similarity.value:.3f}, split over pairs of tokens",
    )
    return figure


def _most(values: NDArray[Any]) -> float:
    """Return the largest value, for the upper end of a scale."""
    return float(np.nanmax(values, initial=0.0)) or 1.0
