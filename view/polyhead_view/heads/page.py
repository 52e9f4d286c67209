"""Write a survey as one HTML page that needs nothing else: no script, no request."""

import base64
import io
import math
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure

from polyhead_view.figures import DPI, Colours
from polyhead_view.heads.formats import role_names
from polyhead_view.heads.pictures import draw_redundancy, draw_score_maps
from polyhead_view.heads.redundancy import most_alike
from polyhead_view.heads.roles import role_counts
from polyhead_view.heads.statistics import HeadStatistics, ScoreSummary
from polyhead_view.heads.survey import HeadSurvey, head_name

_PAIRS = 10
_LEAST_DPI = 84
"""Below so many dots an inch labels cannot be read: on narrow pages, pictures are scrolled instead."""
_DARK_STYLE: dict[Any, Any] = {
    "text.color": "#dddddd",
    "axes.labelcolor": "#dddddd",
    "axes.edgecolor": "#aaaaaa",
    "xtick.color": "#dddddd",
    "ytick.color": "#dddddd",
}


def as_page(
    survey: HeadSurvey,
    corpus: str,
    *,
    title: str | None = None,
    colours: Colours | None = None,
    dpi: float = DPI,
) -> str:
    """Return the page.

    Args:
        survey: The survey.
        corpus: What the texts are, such as the name of their file.
        title: The title; None means the model, "" none.
        colours: A colour map of matplotlib, of the scores; None means cividis. Correlations keep their own,
            whose middle is 0.
        dpi: Dots an inch of the pictures, which are shown in one size.

    Raises:
        ValueError: There is no such colour map.
    """
    raw, weighted = (role_counts(survey.scores, kind.scores.mean) for kind in (survey.raw, survey.weighted))
    return render(
        "page.html",
        survey=survey,
        corpus=corpus,
        title=title,
        roles=[(role, count, weighted[role]) for role, count in raw.items()],
        kinds=[
            _kind(survey, name, statistics, colours or "cividis", dpi)
            for name, statistics in (
                ("Attention", survey.raw),
                ("Norm-weighted attention", survey.weighted),
            )
        ],
    )


def render(template: str, **values: Any) -> str:
    """Return a page made from one of the templates beside this module."""
    environment = Environment(
        loader=PackageLoader("polyhead_view.heads", "."),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values, version=version("polyhead"))


def _kind(
    survey: HeadSurvey, title: str, statistics: HeadStatistics, colours: Colours, dpi: float
) -> dict[str, Any]:
    summary, redundancy = statistics.scores, statistics.redundancy
    return {
        "title": title,
        "maps": picture(lambda: draw_score_maps(survey, summary, colours=colours), dpi),
        "heads": _heads(survey, summary),
        "redundancy": redundancy
        and {
            "texts": redundancy.texts,
            "picture": picture(lambda: draw_redundancy(survey, redundancy), dpi),
            "pairs": [
                (head_name(survey, pair.a), head_name(survey, pair.b), pair.correlation)
                for pair in islice(most_alike(redundancy), _PAIRS)
            ],
        },
    }


def _heads(survey: HeadSurvey, summary: ScoreSummary) -> list[dict[str, Any]]:
    """Return a table's rows; a cell has its mean, its spread, and its share of the column's largest mean."""
    most = np.array(
        [float(np.nanmax(column, initial=0.0)) or 1.0 for column in np.moveaxis(summary.mean, -1, 0)]
    )
    shares = np.nan_to_num(np.clip(summary.mean / most, 0, 1))
    return [
        {
            "name": f"{layer}.{head}",
            "roles": role_names(survey, summary, at, head),
            "drift": None if survey.drift is None else f"{survey.drift[layer, head]:.4f}".replace("nan", "–"),
            "cells": [
                (_number(mean), _number(sd), f"{100 * share:.0f}")
                for mean, sd, share in zip(
                    summary.mean[at, head], summary.sd[at, head], shares[at, head], strict=True
                )
            ],
        }
        for at, layer in enumerate(survey.layers)
        for head in range(survey.heads)
    ]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def picture(draw: Callable[[], Figure], dpi: float) -> dict[str, Any]:
    """Return a picture as PNG in base64, for light and for dark pages; its width on a page, and the least."""
    figure = draw()
    width, least = (round(figure.get_figwidth() * dots) for dots in (DPI, _LEAST_DPI))
    with mpl.rc_context(_DARK_STYLE):
        dark = draw()
        return {"light": _png(figure, dpi), "dark": _png(dark, dpi), "width": width, "least": least}


def _png(figure: Figure, dpi: float) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dpi, facecolor="none")  # cells without a value stay grey
    return base64.b64encode(data.getvalue()).decode()
