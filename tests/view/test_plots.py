"""Pictures of attention."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polyhead_client import Encoding, Timings
from polyhead_view import draw_heads, draw_pair, draw_rollout, draw_scores, save


def encoding(count: int, tokens: Sequence[str] | None, *, size: int = 4, **changes: Any) -> Encoding:
    weights = np.random.default_rng(count).random((count, size, size), np.float32) / 2
    values: dict[str, Any] = {
        "model": "minilm.attention",
        "version": "3",
        "output": None,
        "pooled": None,
        "attention": {5: weights},
        "heads": tuple(range(count)),
        "queries": None,
        "tokens": tokens,
        "lengths": size,
        "timings": Timings(total_ns=1),
    }
    return Encoding(**values | changes)


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
        (draw_heads(given, layer=0, cross=True, query_labels=words, key_labels=keys), (words, keys)),
    ):
        for axis, head in zip(maps(figure), weights, strict=True):
            np.testing.assert_array_equal(axis.images[0].get_array(), head)
            assert [text.get_text() for text in axis.get_xticklabels()] == columns
        assert [text.get_text() for text in maps(figure)[0].get_yticklabels()] == rows
        assert figure.get_suptitle().endswith("attention weights to the memory of layer 0")
    with pytest.raises(ValueError, match="key_labels must be 5, one for each key, were 3"):
        draw_heads(given, layer=0, cross=True, key_labels=words)
    with pytest.raises(ValueError, match="query_labels must be one for each query, more than 2, were 2"):
        draw_heads(given, layer=0, cross=True, query_labels=words[:2])


@pytest.mark.parametrize(
    ("heads", "columns", "rows"), [(12, None, 1), (16, None, 2), (25, None, 3), (5, 2, 3), (2, 9, 1)]
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


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_pictures_of_any_script_are_written(tmp_path: Path, kind: str) -> None:
    save(draw_heads(encoding(2, ["[CLS]", "猫", "$a$b", "\\frac"]), layer=5), tmp_path / f"heads.{kind}")

    assert (tmp_path / f"heads.{kind}").stat().st_size > 1000


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


def test_scores_are_a_map_of_layers_and_heads() -> None:
    values = np.array([[0.25, 1, np.nan], [0, 0.5, 2]])

    axis, _ = draw_scores(values, title="$entropy$", layers=[3, 5]).axes

    np.testing.assert_array_equal(axis.images[0].get_array(), values)
    assert axis.images[0].get_clim() == (0, 2)
    assert [text.get_text() for text in axis.texts] == ["0.25", "1.00", "0.00", "0.50", "2.00"]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["3", "5"]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0", "1", "2"]


def test_scores_of_many_heads_have_no_numbers(tmp_path: Path) -> None:
    figure = draw_scores(np.full((96, 96), np.nan), title="none", limits=(0, 1))
    save(figure, tmp_path / "scores.png")

    assert not figure.axes[0].texts
    assert figure.axes[0].images[0].get_clim() == (0, 1)


@pytest.mark.parametrize("values", [np.ones(3), np.ones((0, 3)), np.ones((1, 2, 3))])
def test_scores_of_another_shape_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"values must be \[L, H\], was \["):
        draw_scores(values, title="entropy")
    with pytest.raises(ValueError, match="layers must be 2 numbers"):
        draw_scores(np.ones((2, 3)), title="entropy", layers=[1])


def rollout(size: int) -> NDArray[np.float32]:
    return np.random.default_rng(size).random((size, size), np.float32)


def test_rollout_is_a_map_of_input_and_output_tokens() -> None:
    given = encoding(1, ["[CLS]", "$x$", "y", "[SEP]"], rollout=rollout(4))

    axis, _ = draw_rollout(given).axes

    np.testing.assert_array_equal(axis.images[0].get_array(), rollout(4))
    assert [text.get_text() for text in axis.get_yticklabels()] == given.tokens
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("input token", "output token")


@pytest.mark.parametrize("query", [3, -1])
def test_rollout_of_a_token_is_a_row_of_bars(query: int) -> None:
    figure = draw_rollout(encoding(1, list("abcd"), rollout=rollout(4)), query=query)

    (axis,) = figure.axes
    heights = [bar.get_height() for bar in axis.patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(heights, rollout(4)[3])
    assert "token 3, d," in figure.get_suptitle()


def test_a_rollout_that_is_not_there_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="encode with rollout=True"):
        draw_rollout(encoding(1, None))
    with pytest.raises(ValueError, match="must be of one sequence"):
        draw_rollout(encoding(1, None, rollout=[rollout(4)]))
    with pytest.raises(ValueError, match="query must be between -4 and 3, was 4"):
        draw_rollout(encoding(1, None, rollout=rollout(4)), query=4)
