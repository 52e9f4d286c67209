"""Image files."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.image import imread
from tests.view.encodings import encoding

from polyhead_view import draw_head, draw_heads, draw_pair, draw_scores, fonts, save

WEIGHTS = np.full((2, 4, 4), 0.25)


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_characters_that_no_font_has_are_told(tmp_path: Path, kind: str) -> None:
    figure = draw_heads(WEIGHTS, tokens=["[CLS]", "\N{CUNEIFORM SIGN A}", "$a$b", "\\frac"])

    with pytest.warns(UserWarning, match="no installed font has all .* install Noto Sans Cuneiform"):
        save(figure, tmp_path / f"heads.{kind}")

    assert (tmp_path / f"heads.{kind}").stat().st_size > 1000


def test_tokens_of_scripts_that_the_font_has_are_drawn_without_a_word(tmp_path: Path) -> None:
    save(draw_heads(WEIGHTS, tokens=["Ġà", "кот", "γάτα", "→"]), tmp_path / "heads.png")


def test_a_pdf_embeds_its_fonts_as_truetype(tmp_path: Path) -> None:
    save(draw_heads(WEIGHTS), tmp_path / "heads.pdf")

    kinds = set(re.findall(rb"/Subtype /(\w+)", (tmp_path / "heads.pdf").read_bytes()))
    assert b"CIDFontType2" in kinds
    assert b"Type3" not in kinds


def test_a_picture_has_as_many_dots_as_asked_for(tmp_path: Path) -> None:
    figure = draw_heads(WEIGHTS)
    for dpi in (150, 300):
        save(figure, tmp_path / f"{dpi}.png", dpi=dpi)

    small, large = (imread(tmp_path / f"{dpi}.png").shape for dpi in (150, 300))
    np.testing.assert_allclose(large[:2], 2 * np.array(small[:2]), atol=2)


@pytest.mark.parametrize("dpi", [0, -1, 1e6, float("nan")])
def test_dots_that_cannot_be_drawn_are_refused(tmp_path: Path, dpi: float) -> None:
    with pytest.raises(ValueError, match=r"dpi must be from 1 to \d+ for a picture of this size, was"):
        save(draw_heads(WEIGHTS), tmp_path / "heads.png", dpi=dpi)


def test_a_notebook_shows_figures_without_further_ado(tmp_path: Path) -> None:
    figure = draw_heads(WEIGHTS)
    shown, _ = DisplayFormatter().format(figure)  # type: ignore[no-untyped-call]

    (tmp_path / "shown.png").write_bytes(shown["image/png"])
    assert imread(tmp_path / "shown.png").shape[0] > 50


def test_a_notebook_is_told_of_characters_that_no_font_has() -> None:
    figure = draw_heads(WEIGHTS, tokens=["\N{CUNEIFORM SIGN A}", "b", "c", "d"])

    with pytest.warns(UserWarning, match="install Noto Sans Cuneiform"):
        DisplayFormatter().format(figure)  # type: ignore[no-untyped-call]


LONG = "a-family-with-a-rather-long-name.attention"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_heads(np.full((1, 1, 12), 0.1), tokens=["a"], key_tokens=["b"] * 12, title=LONG * 2),
        lambda: draw_heads(np.full((2, 40, 300), 0.1)),
        lambda: draw_head(np.full((1, 30), 0.1), tokens=["a"], key_tokens=["b"] * 30),
        lambda: draw_head(np.full((1, 4), 0.1), tokens=["a"], key_tokens=["b"] * 4, title="→" * 60),
        lambda: draw_pair(
            encoding(2, ["The", "cat"], size=2, model=LONG), encoding(2, ["The", "cat"], size=2), head=1
        ),
        lambda: draw_pair(encoding(1, ["yesterday"] * 8, size=8, model=LONG), encoding(1, None, size=8)),
        lambda: draw_scores(np.ones((1, 1)), title=f"the entropy of the only head of {LONG}"),
    ],
)
def test_words_are_within_the_picture_and_apart(draw: Callable[[], Figure]) -> None:
    figure = draw()
    figure.draw_without_rendering()
    drawn, whole = figure.get_tightbbox(), figure.bbox_inches
    assert (drawn.x0, drawn.y0) >= (-0.01, -0.01)
    assert drawn.x1 <= whole.x1 + 0.01
    assert drawn.y1 <= whole.y1 + 0.01
    outer = (figure._suptitle, figure._supxlabel, figure._supylabel)  # type: ignore[attr-defined]
    for name in filter(None, outer):
        box = name.get_window_extent()
        assert not [axis.get_title() for axis in figure.axes if box.overlaps(axis.get_tightbbox())]
    titles = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
    for at, box in enumerate(titles):
        assert not box.count_overlaps(titles[:at])


def test_a_font_installed_after_matplotlib_has_listed_them_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = font_manager.fontManager.ttflist
    (path,) = {
        entry.fname for entry in listed if entry.name == "STIXGeneral" and entry.fname.endswith("ral.ttf")
    }
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [one for one in listed if one.fname != path])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [path, "/not/there.ttf"])

    fonts._add_new_fonts()

    assert path in {entry.fname for entry in font_manager.fontManager.ttflist}


def test_a_font_that_a_pdf_embeds_as_it_is_comes_first(tmp_path: Path) -> None:
    for name, start in {"a.ttf": b"\0\1\0\0", "b.otf": b"OTTO"}.items():
        (tmp_path / name).write_bytes(start)
        collection = b"ttcf" + bytes([0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 16]) + start
        (tmp_path / name).with_suffix(".ttc").write_bytes(collection)

    expected = {"a.ttf": True, "b.otf": False, "a.ttc": True, "b.ttc": False, "c": False}
    assert {name: fonts._is_truetype(str(tmp_path / name)) for name in expected} == expected
