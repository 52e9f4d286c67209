"""Draw a survey: a map of every score, and which heads are alike.

Shape letters: H heads, L layers.
"""

import math

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from polyhead_view.figures import FONT_SIZE, Colours, Picture, add_bar, draw_map, label, set_title
from polyhead_view.heads.redundancy import clustered
from polyhead_view.heads.statistics import Redundancy, ScoreSummary
from polyhead_view.heads.survey import HeadSurvey, head_name

_COLUMNS = 4
_MOST_LABELS = 96


def draw_score_maps(
    survey: HeadSurvey, summary: ScoreSummary, *, title: str = "", colours: Colours = "cividis"
) -> Figure:
    """Draw the mean of every score as a map of layers and heads, each with a colour scale of its own."""
    columns = min(_COLUMNS, len(survey.scores))
    rows = math.ceil(len(survey.scores) / columns)
    layers, heads = summary.mean.shape[:2]
    width, height = 2.5, min(max(2.0 * layers / heads, 0.9), 3.6)
    figure = Picture(figsize=(columns * (width + 0.5), rows * (height + 0.5)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, score, means in zip(axes.flat, survey.scores, np.moveaxis(summary.mean, -1, 0), strict=False):
        most = float(np.nanmax(means, initial=0.0)) or 1.0
        image = draw_map(axis, means, Normalize(0, most), colours=colours)
        axis.set_title(score.replace("_", " "), fontsize=FONT_SIZE + 1, pad=3)
        label(axis.xaxis, [str(head) for head in range(heads)], width * 0.65, rotation=0)
        label(axis.yaxis, [str(layer) for layer in survey.layers], height * 0.8, rotation=0)
        add_bar(figure, image, axis, "", height=height)
    for axis in axes.flat[len(survey.scores) :]:
        axis.set_visible(False)
    figure.supxlabel("head", fontsize=FONT_SIZE)
    figure.supylabel("layer", fontsize=FONT_SIZE)
    set_title(figure, title)
    return figure


def draw_redundancy(
    survey: HeadSurvey, redundancy: Redundancy, *, title: str = "", colours: Colours = "PuOr_r"
) -> Figure:
    """Draw the correlations of all pairs of heads, with heads that are alike side by side."""
    order = clustered(redundancy)
    names = [head_name(survey, row) for row in order]
    size = min(max(len(order) * 0.1, 3.0), 9.6)
    figure = Picture(figsize=(size + 1.4, size + 0.7), layout="constrained")
    axis = figure.subplots()
    correlation = redundancy.correlation[np.ix_(order, order)]
    image = draw_map(axis, correlation, Normalize(-1, 1), colours=colours)
    axis.set_box_aspect(1)
    if len(order) <= _MOST_LABELS:
        axis.set_xticks(range(len(order)), names, rotation=90, fontsize=FONT_SIZE - 2)
        axis.set_yticks(range(len(order)), names, fontsize=FONT_SIZE - 2)
        axis.tick_params(length=1, pad=1)
    else:
        label(axis.xaxis, names, size, rotation=90)
        label(axis.yaxis, names, size, rotation=0)
    axis.set_xlabel("layer.head", fontsize=FONT_SIZE)
    add_bar(figure, image, axis, "correlation of the maps")
    set_title(figure, title)
    return figure
