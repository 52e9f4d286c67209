"""A survey as CSV and JSON."""

import csv
import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.view.heads.surveys import HEADS, LAYERS, SCORES, survey

from polyhead_view.heads.formats import as_csv, as_json


def test_csv_has_a_row_for_each_head_and_kind_of_attention() -> None:
    found = survey()

    rows = list(csv.DictReader(as_csv(found).splitlines()))

    assert [(int(row["layer"]), int(row["head"]), row["attention"]) for row in rows] == list(
        product(LAYERS, range(HEADS), ["raw", "weighted"])
    )
    assert rows[0]["roles"] == "previous token"
    assert rows[2]["roles"] == ""
    for row, (at, head) in zip(rows[::2], product(range(2), range(HEADS)), strict=True):
        for column, score in enumerate(SCORES[:3]):
            assert float(row[score]) == pytest.approx(found.raw.scores.mean[at, head, column], rel=1e-5)
            assert float(row[f"{score}_sd"]) == pytest.approx(found.raw.scores.sd[at, head, column], rel=1e-5)
        assert row["previous_texts"] == "4"
        assert (row["duplicate_texts"], row["duplicate_sd"]) == ("1", "")


def test_json_has_rules_heads_and_correlations() -> None:
    found: Any = survey()

    printed = json.loads(as_json(found))

    assert (printed["format"], printed["model"], printed["texts"], printed["tokens"]) == (1, "made", 4, 19)
    assert [rule["score"] for rule in printed["rules"]] == [
        "previous",
        "next",
        "duplicate",
        "normalised_entropy",
    ]
    assert [(head["layer"], head["head"]) for head in printed["heads"]] == list(product(LAYERS, range(HEADS)))
    first = printed["heads"][0]
    assert first["raw"]["roles"] == ["previous token"]
    assert first["raw"]["scores"]["duplicate"]["sd"] is None
    assert first["weighted"]["scores"]["previous"]["mean"] == pytest.approx(0.45)
    np.testing.assert_allclose(
        printed["redundancy"]["raw"]["correlation"], found.raw.redundancy.correlation, rtol=1e-5, atol=1e-9
    )


def test_what_is_not_known_is_null() -> None:
    printed = json.loads(as_json(survey(["a b c d e f g h i"])))

    assert printed["redundancy"] == {"raw": None, "weighted": None}
