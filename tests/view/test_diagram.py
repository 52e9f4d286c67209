"""The diagram of an encoder's data flow."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.transforms import BboxBase
from tests.encoders import BERT, MODERN
from tests.model.test_properties import configs
from tests.pages import block

from polyhead_model import PRESETS, Classifier, Dense, EncoderConfig, summary
from polyhead_model.attention_config import Disentangled
from polyhead_model.task_heads import Convolution, LexicalWeights
from polyhead_view import draw_flow

PRUNED = replace(BERT, d_model=12, heads=3, layers=4, kept_heads=((0, 1), (0, 1, 2), (2,), (0, 1)))
MANY_HEADS = replace(
    BERT,
    padding_id=1,
    pooling="mean",
    normalise=True,
    lexical=LexicalWeights(),
    classifier=Classifier(labels=("yes",), dense=(Dense(width=300, activation="leaky_relu", norm=True),)),
)
DISENTANGLED = replace(
    BERT,
    disentangled=Disentangled(terms=("c2p", "p2c"), span=8, norm=True),
    convolution=Convolution(width=3),
)
ALL = {**PRESETS, "disentangled": DISENTANGLED, "modern": MODERN, "pruned": PRUNED, "many-heads": MANY_HEADS}


def drawn(config: EncoderConfig, name: str = "mine", tokens: int = 8) -> Figure:
    return draw_flow(summary(name, config, 1, tokens))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def sides(figure: Figure) -> Iterator[tuple[str, BboxBase]]:
    """Every box, and every text, with its sides in dots."""
    highest = max(patch.get_zorder() for patch in figure.axes[0].patches)
    for patch in figure.axes[0].patches:
        if patch.get_zorder() == highest:  # boxes are above the grounds of layers and heads
            yield "", patch.get_window_extent()
    for text in figure.axes[0].texts:
        if text.get_text():
            yield text.get_text(), text.get_window_extent()


def overlap(a: BboxBase, b: BboxBase) -> bool:
    """Whether they have more in common than the blank above and below letters."""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 3


def check_places(figure: Figure) -> None:
    """Nothing lies on anything else, unless it is in its box, and all is on the picture."""
    found = list(sides(figure))
    for name, each in found:
        assert each.x0 >= 0, name
        assert each.x1 <= figure.bbox.x1, name
        assert each.y0 >= 0, name
        assert each.y1 <= figure.bbox.y1, name
    for (name, a), (other, b) in combinations(found, 2):
        inside = (
            not name and other and a.x0 <= b.x0 and b.x1 <= a.x1 and a.y0 <= b.y0 + 2 and b.y1 <= a.y1 + 2
        )
        assert inside or not overlap(a, b), f"{name or 'a box'} lies on {other or 'a box'}"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tokens", [8, 2**20])
def test_nothing_overlaps(name: str, tokens: int) -> None:
    check_places(drawn(ALL[name], name, min(tokens, ALL[name].positions or tokens)))


@settings(max_examples=10)
@given(config=configs())
def test_nothing_overlaps_of_any_configuration(config: EncoderConfig) -> None:
    check_places(drawn(config))


@pytest.mark.parametrize("name", ["teaching", "gpt2", "decoder-block", "cross", "many-heads"])
def test_every_step_is_drawn(name: str) -> None:
    numbers = json.loads(json.dumps(summary(name, ALL[name], 1, 8)))
    found = " ".join(texts(draw_flow(numbers)))

    for section in numbers["sections"]:
        for step in section["steps"]:
            assert step["tensor"] in found
            for tensor in step["parameters"]:
                assert re.search(rf"\b{tensor['name']}\b", found)


def test_shapes_are_on_the_arrows() -> None:
    found = texts(drawn(PRESETS["bert-base"]))

    for letters, sizes, times in (
        ("[B, T, H·K]", "[1, 8, 768]", 4),
        ("[B, T, H, K]", "[1, 8, 12, 64]", 4),
        ("[B, H, T, K]", "[1, 12, 8, 64]", 4),
        ("[B, H, K, T]", "[1, 12, 64, 8]", 1),
        ("[B, H, T, T]", "[1, 12, 8, 8]", 2),
        ("[B, T, F]", "[1, 8, 3072]", 2),
    ):
        assert found.count(letters) == times
        assert found.count(sizes) >= times
    assert {"layer  × 12", "× 12\nheads", "attention", "feed-forward"} <= set(found)
    assert any("K = 64  head width" in text.replace("\u00a0", " ") for text in found)
    assert found.count("residual") == 2
    assert {"mask (causal, padding)", "[B, T, T] = [1, 8, 8]"} <= set(texts(drawn(PRESETS["gpt2"])))


def test_layers_that_differ_are_said() -> None:
    assert texts(drawn(PRUNED))[-3:] == [
        "Layers 0, 3 as drawn (H = 2).",
        "Layer 1: H = 3.",
        "Layer 2: H = 1.",
    ]
    modern = replace(MODERN, layers=5, global_every=3)
    assert " ".join(texts(drawn(modern))).endswith(
        "Layers 1-2, 4 as drawn. "
        "Layer 0: without h = norm(x), angles in place of local angles, mask in place of local mask. "
        "Layer 3: angles in place of local angles, mask in place of local mask."
    )
    assert not any("as drawn" in text for text in texts(drawn(PRESETS["bert-base"])))


def test_names_are_no_formulas_and_fit() -> None:
    assert "$x_1$ {" in texts(drawn(PRESETS["teaching"], "$x_1$ {"))
    long = drawn(PRESETS["teaching"], "an encoder " * 50)
    assert any(text.startswith("an encoder") and text.endswith("…") for text in texts(long))
    check_places(long)


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    exec(block("docs/configurations.md", "draw_flow"), {})

    svg = (tmp_path / "flow.svg").read_text()
    assert ">weights = softmax</text>" in svg  # text as text, which can be edited
    assert "sans-serif" in svg


def test_a_style_with_a_layout_of_its_own_changes_nothing(tmp_path: Path) -> None:
    with rc_context({"figure.constrained_layout.use": True}):
        figure = drawn(PRESETS["teaching"])
        figure.savefig(tmp_path / "flow.png")
    check_places(figure)


@pytest.mark.parametrize("wrong", [None, PRESETS["teaching"], {"name": "x"}, []])
def test_what_is_no_summary_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"numbers must be what polyhead_model\.summary returns, was"):
        draw_flow(wrong)
