"""The page of a survey."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from tests.view.heads.surveys import HEADS, LAYERS, survey

from polyhead_view import draw_scores
from polyhead_view.heads.page import as_page, picture


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page() -> str:
    """A page, of a corpus with a bad name."""
    return as_page(survey(), "<script>alert('x')</script>")


def test_the_page_needs_nothing_else(page: str) -> None:
    tags = Tags(page).found
    sources = [
        values.get("src") or values.get("srcset") or "" for name, values in tags if name in {"img", "source"}
    ]
    assert len(sources) == 8, "scores and redundancy, of two kinds of attention, light and dark"
    for source in sources:
        data = source.removeprefix("data:image/png;base64,")
        assert imread(io.BytesIO(base64.b64decode(data, validate=True))).shape[0] > 100
    assert not {name for name, _ in tags} & {"script", "link", "iframe", "object"}
    assert not re.search(r"https?:|url\(|@import", page)


def test_the_page_has_all_heads_with_roles_and_numbers(page: str) -> None:
    assert page.count('class="score"') == 2 * len(LAYERS) * HEADS * 4
    assert "0.90 <small>± 0.00</small>" in page
    assert '<td>0.0</td><td class="left">previous token</td>' in page
    assert "2.1 and 2.2 (1.00)" in page
    assert "4 texts" in page
    assert "nan" not in re.sub('base64,[^"]*', "", page)


@pytest.mark.parametrize("text", ["a b c d e f g h i", "a"])
def test_a_corpus_of_one_text_has_a_page(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(text) > 1:  # whose pictures are those of all texts
        monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    page = as_page(survey([text]), "corpus.txt")

    assert "± –" in page
    assert ("Not known: no text is short enough" in page) is (len(text) > 1)


def test_cells_without_a_value_are_grey_on_a_page_of_any_colour() -> None:
    drawn = picture(lambda: draw_scores(np.array([[0.5, np.nan]]), title=""), 50)

    dots = imread(io.BytesIO(base64.b64decode(drawn["light"])))

    assert (np.abs(dots - [*[0x9A / 255] * 3, 1]).max(-1) < 0.01).mean() > 0.05
    assert dots[0, 0, 3] == 0
