"""Pictures of what a server returns beside weights: scores, rollout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.view.encodings import encoding

from polyhead_view import draw_rollout, draw_scores, save


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
