"""Write a comparison of two families' heads as one HTML page that needs nothing else."""

import math
from typing import Any

import numpy as np

from polyhead_view.figures import DPI, Colours
from polyhead_view.heads.comparison import (
    ComparedKind,
    HeadComparison,
    count_roles,
    role_changes,
    same_numbers,
)
from polyhead_view.heads.comparison_pictures import draw_compared_scores, draw_correlation
from polyhead_view.heads.comparison_table import alike_by_number, not_by_number, title_of
from polyhead_view.heads.formats import role_names
from polyhead_view.heads.page import picture, render

_TITLES = {"raw": "Attention", "weighted": "Norm-weighted attention"}


def comparison_page(
    comparison: HeadComparison,
    corpus: str,
    *,
    title: str | None = None,
    colours: Colours | None = None,
    dpi: float = DPI,
) -> str:
    """Return the page.

    Args:
        comparison: The comparison.
        corpus: What the texts are, such as the name of their file.
        title: The title; None means the families, "" none.
        colours: A colour map of matplotlib, of the scores; None means cividis. Differences and correlations
            keep theirs, whose middle is 0.
        dpi: Dots an inch of the pictures, which are shown in one size.

    Raises:
        ValueError: There is no such colour map.
    """
    surveys = comparison.a, comparison.b
    roles = count_roles(comparison).items()
    return render(
        "comparison.html",
        comparison=comparison,
        corpus=corpus,
        title=title,
        names=[comparison.name_of(survey) for survey in surveys],
        titles=[title_of(survey) for survey in surveys],
        not_by_number=not_by_number(comparison),
        roles=[(role, ["–" if each is None else each for each in counts]) for role, counts in roles],
        kinds=[_kind(comparison, kind, colours or "cividis", dpi) for kind in comparison.kinds],
    )


def _kind(comparison: HeadComparison, kind: ComparedKind, colours: Colours, dpi: float) -> dict[str, Any]:
    correlation = kind.differences.correlation
    return {
        "title": _TITLES[kind.name],
        "changes": role_changes(comparison, kind) if comparison.same_heads else [],
        "maps": picture(lambda: draw_compared_scores(comparison, kind, colours=colours), dpi),
        "heads": _heads(comparison, kind),
        "alike": alike_by_number(comparison, kind) if comparison.same_heads else "",
        "correlation": correlation and picture(lambda: draw_correlation(comparison, correlation), dpi),
    }


def _heads(comparison: HeadComparison, kind: ComparedKind) -> list[dict[str, Any]]:
    """Return a table's rows; a cell has a difference and its standard error."""
    if (of := kind.differences.scores) is None:
        return []
    survey = comparison.a
    correlation = kind.differences.correlation
    same = np.full(of.mean[..., 0].size, np.nan) if correlation is None else same_numbers(correlation)
    return [
        {
            "name": f"{layer}.{head}",
            "roles": [
                role_names(comparison.a, kind.a.scores, at, head),
                role_names(comparison.b, kind.b.scores, at, head),
            ],
            "correlation": _number(same[at * survey.heads + head], ".2f"),
            "cells": [
                (_number(mean, "+.3f"), _number(error, ".3f"))
                for mean, error in zip(of.mean[at, head], of.standard_error[at, head], strict=True)
            ],
        }
        for at, layer in enumerate(survey.layers)
        for head in range(survey.heads)
    ]


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)
