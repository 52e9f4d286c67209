"""Image files."""

import re
from pathlib import Path

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.image import imread

from polyhead_view import draw_heads, save

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
