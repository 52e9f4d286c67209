"""Write a survey as CSV or JSON."""

import csv
import io
import json
import math
from typing import Any

import numpy as np

from polyhead_view.heads.roles import PRUNED, ROLES, roles_of
from polyhead_view.heads.statistics import Redundancy, ScoreSummary
from polyhead_view.heads.survey import HeadSurvey

JSON_FORMAT = 1
"""Incremented when a reader of the old format would misread the new one."""


def as_csv(survey: HeadSurvey) -> str:
    """Return two rows for each head: of attention weights (raw), and of norm-weighted attention (weighted).

    The columns are layer, head, attention, roles, drift where heads were silenced, and of every score the
    mean, the standard deviation (SCORE_sd) and the number of texts that have it (SCORE_texts). What is not
    defined is empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{score}{suffix}" for score in survey.scores for suffix in ("", "_sd", "_texts")]
    silenced = [] if survey.drift is None else ["drift"]
    writer.writerow(["layer", "head", "attention", "roles", *silenced, *columns])
    for at, layer in enumerate(survey.layers):
        for head in range(survey.heads):
            for kind, summary in _kinds(survey):
                roles = "; ".join(role_names(survey, summary, at, head))
                cells = [
                    "" if value is None else value
                    for of_score in _scores(survey, summary, at, head).values()
                    for value in of_score.values()
                ]
                drift = [] if survey.drift is None else [number(survey.drift[layer, head])]
                writer.writerow([layer, head, kind, roles, *drift, *cells])
    return text.getvalue()


def as_json(survey: HeadSurvey) -> str:
    """Return a JSON object: format, model, version, texts, tokens, rules, heads, redundancy.

    Each of the heads has layer, head, and for raw and weighted the roles and the scores, with mean, sd and
    texts. Where heads were silenced, each has its drift, which is over drift_texts texts. The redundancy has
    for raw and weighted the number of texts and the correlations, of which rows and columns are in the order
    of the heads; or null. What is not defined is null.
    """
    return json.dumps(survey_object(survey), ensure_ascii=False, allow_nan=False)


def survey_object(survey: HeadSurvey) -> dict[str, Any]:
    """Return what `as_json` writes."""
    heads = [
        {
            "layer": layer,
            "head": head,
            **({} if survey.drift is None else {"drift": number(survey.drift[layer, head])}),
            **{
                kind: {
                    "roles": role_names(survey, summary, at, head),
                    "scores": _scores(survey, summary, at, head),
                }
                for kind, summary in _kinds(survey)
            },
        }
        for at, layer in enumerate(survey.layers)
        for head in range(survey.heads)
    ]
    return {
        "format": JSON_FORMAT,
        "model": survey.model,
        "version": survey.version,
        "texts": survey.texts,
        "tokens": survey.tokens,
        **({} if survey.drift is None else {"drift_texts": survey.drift_texts}),
        "rules": [
            {"role": role.name, "score": role.score, "at_least": role.least, "means": role.meaning}
            for role in ROLES
            if role.score in survey.scores
        ],
        "heads": heads,
        "redundancy": {
            "raw": redundancy_object(survey.raw.redundancy),
            "weighted": redundancy_object(survey.weighted.redundancy),
        },
    }


def role_names(survey: HeadSurvey, summary: ScoreSummary, at: int, head: int) -> list[str]:
    """Return the names of a head's roles, given the row of its layer; "pruned" if the head is gone."""
    if (survey.layers[at], head) in survey.pruned:
        return [PRUNED]
    return [role.name for role in roles_of(survey.scores, summary.mean[at, head])]


def _kinds(survey: HeadSurvey) -> tuple[tuple[str, ScoreSummary], tuple[str, ScoreSummary]]:
    return ("raw", survey.raw.scores), ("weighted", survey.weighted.scores)


def _scores(survey: HeadSurvey, summary: ScoreSummary, at: int, head: int) -> dict[str, dict[str, Any]]:
    return {
        score: {
            "mean": number(summary.mean[at, head, column]),
            "sd": number(summary.sd[at, head, column]),
            "texts": int(summary.texts[at, head, column]),
        }
        for column, score in enumerate(survey.scores)
    }


def redundancy_object(redundancy: Redundancy | None) -> dict[str, Any] | None:
    """Return the number of texts, and the correlations."""
    if redundancy is None:
        return None
    rows = [[number(value) for value in row] for row in redundancy.correlation]
    return {"texts": redundancy.texts, "correlation": rows}


def number(value: np.floating[Any]) -> float | None:
    """Return six significant digits; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.6g}")
