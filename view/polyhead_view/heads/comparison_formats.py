"""Write a comparison of two families' heads as CSV or JSON."""

import csv
import io
import json
from typing import Any

from polyhead_view.heads.comparison import (
    HeadComparison,
    common_means,
    most_alike_in_other,
    same_numbers,
)
from polyhead_view.heads.formats import JSON_FORMAT, number, redundancy_object, role_names, survey_object
from polyhead_view.heads.survey import head_name


def comparison_csv(comparison: HeadComparison) -> str:
    """Return two rows for each head of the first family: of attention weights, and norm-weighted.

    The columns are layer, head, attention, roles, alike and alike_correlation: the layer.head of the second
    family whose maps are most alike, and how alike. Where heads are compared by number, they go on with
    against_roles and map_correlation, and of every score that both have with the mean in the first family
    (SCORE), in the second (SCORE_against), the mean difference (SCORE_difference), its standard error
    (SCORE_se) and the number of texts (SCORE_texts). What is not defined is empty.
    """
    text = io.StringIO()
    rows = _heads(comparison)
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "; ".join(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in rows
    )
    return text.getvalue()


def comparison_json(comparison: HeadComparison) -> str:
    """Return a JSON object: format, surveys, same_heads, heads, correlation.

    The surveys are those of both families, as `as_json` writes one. The heads are the rows of
    `comparison_csv`. The correlation has for raw and weighted the number of texts and the correlations of all
    pairs of heads, of which rows are the first family's; or null. What is not defined is null.
    """
    return json.dumps(
        {
            "format": JSON_FORMAT,
            "surveys": [survey_object(survey) for survey in (comparison.a, comparison.b)],
            "same_heads": comparison.same_heads,
            "heads": _heads(comparison),
            "correlation": {
                name: redundancy_object(differences.correlation) for name, *_, differences in comparison.kinds
            },
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _heads(comparison: HeadComparison) -> list[dict[str, Any]]:
    rows: dict[tuple[int, int, str], dict[str, Any]] = {}
    survey, other = comparison.a, comparison.b
    for kind in comparison.kinds:
        correlation = kind.differences.correlation
        alike = [] if correlation is None else most_alike_in_other(correlation)
        means = common_means(comparison, kind)
        for at, layer in enumerate(survey.layers):
            for head in range(survey.heads):
                flat = at * survey.heads + head
                found = alike[flat] if alike else None
                row: dict[str, Any] = {
                    "layer": layer,
                    "head": head,
                    "attention": kind.name,
                    "roles": role_names(survey, kind.a.scores, at, head),
                    "alike": None if found is None else head_name(other, found[0]),
                    "alike_correlation": None if found is None else float(f"{found[1]:.6g}"),
                }
                if (of := kind.differences.scores) is not None:
                    row["against_roles"] = role_names(other, kind.b.scores, at, head)
                    row["map_correlation"] = correlation and number(same_numbers(correlation)[flat])
                    for column, score in enumerate(comparison.scores):
                        row[score] = number(means[0][at, head, column])
                        row[f"{score}_against"] = number(means[1][at, head, column])
                        row[f"{score}_difference"] = number(of.mean[at, head, column])
                        row[f"{score}_se"] = number(of.standard_error[at, head, column])
                        row[f"{score}_texts"] = int(of.texts[at, head, column])
                rows[at, head, kind.name] = row
    return [rows[key] for key in sorted(rows)]
