"""Pictures of attention weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.view.encodings import encoding
from tests.view.explorer.test_frames import unpack

from polyhead_client import Encoding
from polyhead_view import draw_head, draw_heads, draw_pair, save, show


def maps(figure: Figure) -> list[Any]:
    return [axis for axis in figure.axes if axis.images and axis.get_title()]


def test_a_row_of_heat_maps_shares_tokens_and_scale() -> None:
    given: Any = encoding(3, ["[CLS]", "$x^", "the_cat", "[SEP]"])

    figure = draw_heads(given, layer=5)

    axes = maps(figure)
    assert [axis.get_title() for axis in axes] == ["head 0", "head 1", "head 2"]
    assert len({axis.get_subplotspec().rowspan.start for axis in axes}) == 1
    for axis, head in zip(axes, given.attention[5], strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), head)
        assert axis.images[0].get_clim() == (0.0, float(given.attention[5].max()))
        assert [text.get_text() for text in axis.get_xticklabels()] == given.tokens
    assert [text.get_text() for text in axes[0].get_yticklabels()] == given.tokens
    assert figure.get_suptitle() == "minilm.attention, version 3\nattention weights of layer 5"


def test_attention_to_a_memory_has_labels_of_both_sides() -> None:
    weights = np.random.default_rng(1).random((2, 3, 5), np.float32)
    given = encoding(2, None, cross_attention={0: weights})
    words, keys = ["le", "chat", "dort"], ["the", "cat", "is", "asleep", "."]

    for figure, (rows, columns) in (
        (draw_heads(given, layer=0, cross=True), (["0", "1", "2"], ["0", "1", "2", "3", "4"])),
        (draw_heads(given, layer=0, cross=True, tokens=words, key_tokens=keys), (words, keys)),
    ):
        for axis, head in zip(maps(figure), weights, strict=True):
            np.testing.assert_array_equal(axis.images[0].get_array(), head)
            assert [text.get_text() for text in axis.get_xticklabels()] == columns
        assert [text.get_text() for text in maps(figure)[0].get_yticklabels()] == rows
        assert figure.get_suptitle().endswith("attention weights to the memory of layer 0")
    with pytest.raises(ValueError, match="key_tokens must be 5, one for each key, were 3"):
        draw_heads(given, layer=0, cross=True, tokens=words, key_tokens=words)
    with pytest.raises(ValueError, match="tokens must be 3, one for each query, were 2"):
        draw_heads(given, layer=0, cross=True, tokens=words[:2])


@pytest.mark.parametrize(
    ("heads", "columns", "rows"),
    [(6, None, 1), (12, None, 2), (16, None, 3), (25, None, 5), (5, 2, 3), (2, 9, 1)],
)
def test_many_heads_take_several_rows(heads: int, columns: int | None, rows: int) -> None:
    axes = maps(draw_heads(encoding(heads, None), layer=5, columns=columns))

    assert len(axes) == heads
    assert {axis.get_subplotspec().rowspan.start for axis in axes} == set(range(rows))


def test_of_many_tokens_some_are_named() -> None:
    (axis,) = maps(draw_heads(encoding(1, [f"token{at}" for at in range(200)], size=200), layer=5))

    named = [text.get_text() for text in axis.get_xticklabels()]
    assert named[:2] == ["token0", "token4"]
    assert len(named) == 50


def test_chosen_heads_and_queries_are_named() -> None:
    given = encoding(
        2, list("abcd"), heads=(7, 3), queries=(2,), attention={5: np.ones((2, 1, 4), np.float32)}
    )

    axes = maps(draw_heads(given, layer=5))

    assert [axis.get_title() for axis in axes] == ["head 7", "head 3"]
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["c"]


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_weights_without_a_largest_can_be_drawn(value: float, tmp_path: Path) -> None:
    given = encoding(1, None, attention={5: np.full((1, 4, 4), value, np.float32)})

    save(draw_heads(given, layer=5), tmp_path / "heads.png")


def test_what_is_not_there_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match=r"layer must be one of \[5\], was 4"):
        draw_heads(encoding(1, None), layer=4)
    with pytest.raises(ValueError, match="encoding must be of one sequence, was of a batch"):
        draw_heads(encoding(1, None, attention={5: [np.ones((1, 4, 4))]}), layer=5)
    with pytest.raises(ValueError, match=r"head must be one of \[0, 2\], was 1"):
        draw_pair(encoding(3, None), encoding(2, None, heads=(0, 2)), layer=5, head=1)


def pair_maps(figure: Figure) -> list[Any]:
    return [axis for axis in figure.axes if axis.images and axis.get_xticklabels()[0].get_rotation() == 90]


@pytest.mark.parametrize("shared", [True, False])
def test_two_inputs_side_by_side(shared: bool) -> None:
    a: Any = encoding(3, list("abcd"))
    b: Any = encoding(2, ["$x$", "y"], size=2, heads=(0, 2))

    figure = draw_pair(a, b, layer=5, head=2, titles=("one", "$other$"), shared_scale=shared)

    left, right = pair_maps(figure)
    np.testing.assert_array_equal(left.images[0].get_array(), a.attention[5][2])
    np.testing.assert_array_equal(right.images[0].get_array(), b.attention[5][1])
    assert (left.get_title(), right.get_title()) == ("one", "$other$")
    assert [text.get_text() for text in right.get_xticklabels()] == b.tokens
    most = [float(a.attention[5][2].max()), float(b.attention[5][1].max())]
    scales = [axis.images[0].get_clim() for axis in (left, right)]
    assert scales == ([(0, max(most))] * 2 if shared else [(0, each) for each in most])


def test_weights_of_many_tokens_are_coloured_by_their_square_root() -> None:
    figure = draw_heads(encoding(2, None, size=100), layer=5)

    assert all(axis.images[0].norm.gamma == 0.5 for axis in maps(figure))
    assert figure.axes[-1].get_ylabel() == "weight, colours by its square root"


def test_every_one_of_512_tokens_has_a_dot_of_its_own() -> None:
    figure = draw_heads(encoding(12, None, size=512), layer=5)
    figure.set_dpi(150)  # as `save` does
    figure.draw_without_rendering()

    for axis in figure.axes[:12]:
        assert min(axis.get_window_extent().size) >= 512
    assert figure.bbox.width < 5000


WEIGHTS = np.random.default_rng(3).dirichlet(np.ones(4), (2, 3, 4)).astype(np.float32)
"""[L, H, T, T]."""


class Tensor:
    """What a tensor of a GPU with a gradient offers, without PyTorch."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape = values, values.shape

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def is_floating_point(self) -> bool:
        return True

    def float(self) -> Any:
        return self.values


@pytest.mark.parametrize(
    "given",
    [
        WEIGHTS,
        WEIGHTS[:, None],
        list(WEIGHTS),
        tuple(Tensor(layer[None]) for layer in WEIGHTS),
        Tensor(WEIGHTS),
    ],
    ids=["array", "batch of one", "list", "tensors of a batch", "tensor"],
)
def test_anybody_s_weights_are_drawn(given: Any) -> None:
    figure = draw_heads(given, layer=1, tokens=list("abcd"))

    for axis, head in zip(maps(figure), WEIGHTS[1], strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), head)
        assert [text.get_text() for text in axis.get_xticklabels()] == list("abcd")
    assert figure.get_suptitle() == "attention weights of layer 1"


def test_one_layer_needs_no_number_and_one_head_neither() -> None:
    several, one = draw_head(WEIGHTS[0], head=2), draw_head(WEIGHTS[0, 2])

    for figure in (several, one):
        axis = figure.axes[0]
        np.testing.assert_array_equal(axis.images[0].get_array(), WEIGHTS[0, 2])
        assert axis.texts[0].get_text() == f"{WEIGHTS[0, 2, 0, 0]:.2f}"
    assert several.get_suptitle() == "attention weights of head 2"
    assert one.get_suptitle() == "attention weights"
    with pytest.raises(ValueError, match=r"head must be one of \[0, 1, 2\], was None"):
        draw_head(WEIGHTS[0])
    with pytest.raises(ValueError, match=r"layer must be one of \[0, 1\], was None"):
        draw_heads(WEIGHTS)


def test_a_large_head_has_no_numbers() -> None:
    figure = draw_head(np.eye(60))

    assert not figure.axes[0].texts
    assert figure.axes[0].get_xlabel() == "key: the token that is attended to"
    figure = draw_head(np.eye(150))
    assert figure.axes[0].get_xlabel().endswith("(every 3rd token is labelled)")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(4), r"weights \[T, S\], \[H, T, S\] or \[L, H, T, S\] of one sequence, was float64 \[4\]"),
        (np.ones((2, 2, 3, 4, 4)), r"was float64 \[2, 2, 3, 4, 4\]"),
        (np.ones((0, 4, 4)), r"was float64 \[0, 4, 4\]"),
        (np.array([["a"]]), "was <U1"),
        (-np.ones((4, 4)), "must be weights after the softmax, 0 or more, was -1"),
        ([np.ones((1, 4, 4)), np.ones((2, 4, 4))], "layers must have one shape"),
        ([[1.0, 2.0], [3.0]], "were ragged lists"),
    ],
)
def test_what_are_no_weights_is_refused(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_heads(weights)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens must be 4, one for each query, were 5"):
        draw_heads(WEIGHTS[0], tokens=list("abcde"))


LOWER = np.tri(4, dtype=bool)


def hidden(axis: Any) -> Any:
    """The cells of a map that are hatched."""
    (patch,) = axis.patches
    assert patch.get_hatch()
    centres = np.stack(np.meshgrid(range(4), range(4)), -1).reshape(-1, 2)
    return patch.get_path().contains_points(centres).reshape(4, 4)


def causal(**changes: Any) -> Encoding:
    weights = WEIGHTS[0] * LOWER
    return encoding(3, None, attention={5: weights}, **changes)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (causal(visible={5: np.broadcast_to(LOWER, (3, 4, 4))}), {}),
        (causal(), {"mask": LOWER}),
        (causal(), {"mask": np.broadcast_to(LOWER, (3, 4, 4))}),
        (np.where(LOWER, WEIGHTS[0], np.nan), {}),
        (np.where(LOWER, WEIGHTS[0], -np.inf), {}),
    ],
    ids=["known", "mask", "mask of heads", "NaN", "-inf"],
)
def test_masked_cells_are_hatched(given: Any, options: Any) -> None:
    figure = draw_heads(given, **options)

    for axis, head in zip(maps(figure), WEIGHTS[0], strict=True):
        np.testing.assert_array_equal(hidden(axis), ~LOWER)
        image = axis.images[0]
        np.testing.assert_array_equal(image.get_array()[LOWER], head[LOWER])
        colours = image.to_rgba(image.get_array())
        assert not (colours[~LOWER][0] == image.to_rgba(np.zeros(1))[0]).all()
    assert figure.axes[-1].get_ylabel() == "weight; hatched: masked"


def test_a_weight_of_0_is_not_masked() -> None:
    figure = draw_heads(causal())

    assert not any(axis.patches for axis in maps(figure))
    assert figure.axes[-1].get_ylabel() == "weight"


def test_padding_that_an_array_keeps_is_masked() -> None:
    exist = np.arange(4) < 3

    axis = maps(draw_heads(causal(lengths=3)))[0]

    np.testing.assert_array_equal(hidden(axis), ~(exist & exist[:, None]))


@pytest.mark.parametrize("mask", [np.ones((4, 4)), np.ones((3, 4), bool), np.ones((2, 4, 4), bool)])
def test_a_mask_that_does_not_fit_is_refused(mask: Any) -> None:
    with pytest.raises(
        ValueError, match=r"mask must be Boolean \[4, 4\] or \[3, 4, 4\], True = may attend, was"
    ):
        draw_heads(WEIGHTS[0], mask=mask)


def test_two_encoders_are_both_named() -> None:
    a, b = encoding(1, None), encoding(1, None, model="other")

    left, right = pair_maps(draw_pair(a, b, layer=5, head=0, titles=("before", "")))

    assert (left.get_title(), right.get_title()) == (
        "minilm.attention, version 3: before",
        "other, version 3",
    )
    figure = draw_pair(WEIGHTS[0, 0], WEIGHTS[1, 1], tokens=list("abcd"))
    assert figure.get_suptitle() == "head 0"


def test_titles_and_colours_are_chosen() -> None:
    for title in ("Mine", ""):
        figure = draw_heads(WEIGHTS[0], title=title, colours="Blues")
        assert figure.get_suptitle() == title
        assert maps(figure)[0].images[0].get_cmap().name == "Blues"
    with pytest.raises(
        ValueError, match=r"colours must be a colour map of matplotlib, such as .*, was 'blau'"
    ):
        draw_heads(WEIGHTS[0], colours="blau")


def test_a_page_has_masks_and_the_labels_of_both_sides() -> None:
    weights, mask = np.full((2, 3, 4), 0.25), np.ones((3, 4), bool)
    mask[:, 3] = False
    words, keys = list("abc"), ["le", "chat", "dort", "."]

    page = show(weights, tokens=words, key_tokens=keys, mask=mask)

    header, arrays = unpack(page.frames["0.1"])
    assert (header["tokens"], header["columns"]) == (words, keys)
    np.testing.assert_array_equal(arrays["masked"], ~mask)
    assert unpack(page.frames["overview"])[1]["masked"][0, 0, :3, :4].tolist() == [[0, 0, 0, 1]] * 3
    with pytest.raises(ValueError, match="key_tokens must be 4, one for each key, were 3"):
        show(weights, tokens=words, key_tokens=words)
    with pytest.raises(ValueError, match="mask must be Boolean"):
        show(weights, mask=mask[:2])
    named = show(encoding(2, list("abc"), size=3), tokens=["x", "y", "z"])
    assert unpack(named.frames["5.0"])[0]["columns"] == ["x", "y", "z"]


def test_a_page_shows_anybody_s_weights() -> None:
    page = show(np.where(LOWER, WEIGHTS, np.nan), layer=1, head=2, tokens=list("abcd"))

    assert page.state["open"] == "1.2"
    assert len(page.frames) == 1 + 2 * 3
