"""Draw a causal trace."""

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from polyhead_client.tracing import Trace
from polyhead_view.drawable import named
from polyhead_view.figures import (
    FONT_SIZE,
    Colours,
    Picture,
    add_bar,
    draw_map,
    label,
    margin,
    set_title,
    side,
)


def draw_trace(trace: Trace, *, title: str | None = None, colours: Colours | None = None) -> Figure:
    """Draw what each place recovers: layers are rows, from the first on top; tokens or heads columns.

    Orange places recover the metric, purple ones take the run further away from the clean one; grey heads
    were pruned. Tokens in which the inputs differ have both names.

    Args:
        trace: From `Client.trace`.
        title: The title; None means who answered and what is shown, "" none.
        colours: A colour map of matplotlib for values around 0.

    Raises:
        ValueError: There is no such colour map.
    """
    rows, columns = trace.shares.shape
    labels = [str(head) for head in range(columns)]
    if trace.by == "token":
        labels = [
            mine if mine == other else f"{mine} ← {other}"
            for mine, other in zip(*(named(tokens, columns) for tokens in trace.tokens), strict=True)
        ]
    layers = [str(layer) for layer in range(rows)]
    if trace.by == "token":
        layers[-1] = "after"
    width, height = max(side(columns), 2.4), max(side(rows), 1.4)
    room = margin(labels) if trace.by == "token" else 0.2
    figure = Picture(figsize=(width + 2.0, height + room + 1.1), layout="constrained")
    axis = figure.subplots()
    most = float(np.nanmax(np.abs(trace.shares), initial=1.0))
    image = draw_map(axis, trace.shares, Normalize(-most, most), colours=colours or "PuOr_r")
    some = label(axis.xaxis, labels, width, rotation=90 if trace.by == "token" else 0)
    label(axis.yaxis, layers, height, rotation=0)
    axis.set_ylabel("stream before layer" if trace.by == "token" else "layer", fontsize=FONT_SIZE)
    by_token = f"token of the clean input ← of the corrupted one{some}"
    axis.set_xlabel(by_token if trace.by == "token" else "head, at all tokens", fontsize=FONT_SIZE)
    add_bar(figure, image, axis, "recovered share")
    what = f"causal trace: {trace.corrupted:.3f} corrupted, {trace.clean:.3f} clean"
    set_title(figure, title, f"{trace.model}, version {trace.version}", what)
    return figure
