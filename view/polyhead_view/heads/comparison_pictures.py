"""Draw a comparison of two families' heads.

Shape letters: H heads, L layers, S scores.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polyhead_view.figures import FONT_SIZE, LINE, Colours, Picture, add_bar, draw_map, label, wrapped
from polyhead_view.heads.comparison import ComparedKind, HeadComparison, common_means
from polyhead_view.heads.statistics import Redundancy
from polyhead_view.heads.survey import HeadSurvey

_WIDTH = 2.6
"""Of a map, in inches."""


def draw_compared_scores(
    comparison: HeadComparison, kind: ComparedKind, *, colours: Colours = "cividis"
) -> Figure:
    """Draw the mean of every score in both families side by side, and the mean difference where there is one.

    Both maps of a score share one colour scale. That of the difference is symmetric around 0.
    """
    surveys, means = (comparison.a, comparison.b), common_means(comparison, kind)
    difference = kind.differences.scores
    columns = 2 if difference is None else 3
    layers = max(len(survey.layers) for survey in surveys)
    height = min(max(1.4 * layers / comparison.a.heads, 0.8), 2.4)
    count = len(comparison.scores)
    names = [score.replace("_", " ") for score in comparison.scores]
    titles = [
        [wrapped(f"{name}, {comparison.name_of(survey)}", _WIDTH + 0.3) for survey in surveys]
        for name in names
    ]
    gap = 0.4 + LINE * max(title.count("\n") for of_score in titles for title in of_score)
    # A constrained layout of as many maps would take half a minute.
    wide, high = columns * (_WIDTH + 0.5), count * (height + gap)
    figure = Picture(figsize=(wide, high))
    axes = figure.subplots(
        count,
        columns,
        squeeze=False,
        gridspec_kw={
            "left": 0.4 / wide,
            "right": 1 - 0.35 / wide,
            "bottom": 0.4 / high,
            "top": 1 - (gap - 0.2) / high,
            "hspace": gap / height,
            "wspace": 0.12,
        },
    )
    for row, name in enumerate(names):
        most = max(float(np.nanmax(each[..., row], initial=0.0)) for each in means) or 1.0
        scale = Normalize(0, most)
        maps: list[tuple[str, NDArray[Any], Normalize, Colours]] = [
            (title, each[..., row], scale, colours) for title, each in zip(titles[row], means, strict=True)
        ]
        if difference is not None:
            values = difference.mean[..., row]
            most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
            maps.append((f"{name}, difference", values, Normalize(-most, most), "PuOr_r"))
        for axis, survey, (title, values, limits, map_) in zip(
            axes[row], (*surveys, comparison.a), maps, strict=False
        ):
            image = draw_map(axis, values, limits, colours=map_)
            axis.set_title(title, fontsize=FONT_SIZE, pad=3, parse_math=False)
            _label(axis, survey, height)
            add_bar(figure, image, axis, "", height=height)
    for axis in axes[-1]:
        axis.set_xlabel("head", fontsize=FONT_SIZE)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer", fontsize=FONT_SIZE)
    return figure


def _label(axis: Axes, survey: HeadSurvey, height: float) -> None:
    label(axis.xaxis, [str(head) for head in range(survey.heads)], _WIDTH * 0.65, rotation=0)
    label(axis.yaxis, [str(layer) for layer in survey.layers], height * 0.8, rotation=0)


def draw_correlation(comparison: HeadComparison, correlation: Redundancy) -> Figure:
    """Draw the correlations of the maps of all heads of the first family, the rows, and of the second."""
    values = correlation.correlation
    rows, columns = (min(max(side * 0.085, 2.5), 9.0) for side in values.shape)
    figure = Picture(figsize=(columns + 1.4, rows + 0.7), layout="constrained")
    axis = figure.subplots()
    image = draw_map(axis, values, Normalize(-1, 1), colours="PuOr_r")
    for side, survey, inches, rotation in (
        (axis.yaxis, comparison.a, rows, 0),
        (axis.xaxis, comparison.b, columns, 90),
    ):
        names = [f"{layer}.{head}" for layer in survey.layers for head in range(survey.heads)]
        label(side, names, inches, rotation=rotation)
    axis.set_ylabel(f"layer.head of {comparison.name_of(comparison.a)}", fontsize=FONT_SIZE)
    axis.set_xlabel(f"layer.head of {comparison.name_of(comparison.b)}", fontsize=FONT_SIZE)
    add_bar(figure, image, axis, "correlation of the maps")
    return figure
