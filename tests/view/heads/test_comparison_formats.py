"""A comparison as CSV and JSON."""

import csv
import json

import pytest
from tests.view.heads.surveys import HEADS, SCORES, MadeClient

from polyhead_view import HeadComparison, compare_heads
from polyhead_view.heads.comparison_formats import comparison_csv, comparison_json


@pytest.fixture(params=[HEADS, 2])
def found(request: pytest.FixtureRequest) -> HeadComparison:
    """Of families with as many heads, and with others."""
    client = MadeClient({"made": HEADS, "other": request.param})
    return compare_heads(client.as_client(), ["a b", "a b c"], model="made", against="other")


def test_csv_has_a_row_for_each_head_of_the_first_family(found: HeadComparison) -> None:
    rows = list(csv.DictReader(comparison_csv(found).splitlines()))

    assert len(rows) == 2 * HEADS * 2
    assert [row["attention"] for row in rows[:2]] == ["raw", "weighted"]
    assert (rows[0]["layer"], rows[0]["head"], rows[0]["roles"]) == ("0", "0", "previous token")
    if found.same_heads:
        assert rows[0]["alike"] == "0.1"
        assert rows[0]["against_roles"] == "previous token"
        assert float(rows[0]["previous"]) == pytest.approx(0.9)
        assert float(rows[0]["previous_difference"]) == pytest.approx(-0.3)
        assert rows[0]["previous_texts"] == "2"
        assert rows[0]["duplicate_difference"] == ""
    else:
        assert list(rows[0]) == ["layer", "head", "attention", "roles", "alike", "alike_correlation"]


def test_json_has_both_surveys_and_what_differs(found: HeadComparison) -> None:
    printed = json.loads(comparison_json(found))

    assert [survey["model"] for survey in printed["surveys"]] == ["made", "other"]
    assert printed["same_heads"] is found.same_heads
    assert len(printed["heads"]) == 2 * HEADS * 2
    correlation = printed["correlation"]["raw"]["correlation"]
    assert (len(correlation), len(correlation[0])) == (2 * HEADS, 2 * found.b.heads)
    assert all(f"{score}_se" in printed["heads"][0] for score in SCORES if found.same_heads)
