"""Attention weighted by what it moves."""

import torch

from polyhead_model.insight.norm_weighted import scale_norm_weighted


def test_a_key_that_moves_nothing_loses_its_weight() -> None:
    """A head that rests on its last key, whose value is almost zero."""
    attention = torch.tensor([[0.1, 0.0, 0.9], [0.05, 0.05, 0.9], [0.0, 0.0, 1.0]])[None, None]

    weighted = scale_norm_weighted(attention, torch.tensor([[[1.0, 3.0, 0.0]]]))

    expected = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(weighted[0, 0], expected)


def test_equal_norms_change_nothing() -> None:
    attention = torch.rand(2, 3, 4, 4).softmax(3)

    torch.testing.assert_close(scale_norm_weighted(attention, torch.full((2, 3, 4), 0.01)), attention)
