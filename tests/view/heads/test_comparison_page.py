"""The page of a comparison."""

import re

import pytest
from matplotlib.figure import Figure
from tests.view.heads.surveys import HEADS, MadeClient

from polyhead_view import compare_heads
from polyhead_view.heads.comparison_page import comparison_page


@pytest.mark.parametrize("heads", [HEADS, 2])
def test_both_families_are_side_by_side(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if heads != HEADS:
        monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    client = MadeClient({"made": HEADS, "<other>": heads}).as_client()
    found = compare_heads(client, ["a b", "a b c"], model="made", against="<other>")

    page = comparison_page(found, "<corpus>.txt")

    assert "Heads of made and &lt;other&gt;" in page
    assert "<other>" not in page
    assert "&lt;corpus&gt;.txt" in page
    assert not re.search(r"https?:|url\(|@import|<script", page)
    assert page.count("<img") == 4, "scores and correlations, of two kinds of attention"
    assert ("All 6 heads in numbers" in page) is (heads == HEADS)
    assert ("no head is compared with that of its number" in page) is (heads != HEADS)
    assert "nan" not in re.sub('base64,[^"]*', "", page)


def test_a_corpus_of_one_long_text_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    client = MadeClient({"made": HEADS, "other": HEADS}).as_client()
    found = compare_heads(client, ["a b c d e f g h i"], model="made", against="other")

    page = comparison_page(found, "corpus.txt")

    assert "± –" in page
    assert "Not known: no text was short enough" in page
