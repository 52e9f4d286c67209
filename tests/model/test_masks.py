"""Masks: the conventions that people hold, into the one inside."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyhead_model import masks

examples = settings(max_examples=50)

allowed_masks = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5).map(
    lambda rows: torch.tensor([rows])
)
"""Boolean masks [1, Tq, 4], True = may attend."""


@examples
@given(allowed_masks, st.sampled_from([-1e4, -1e9, torch.finfo(torch.float32).min, float("-inf")]))
def test_every_convention_says_the_same(allowed: Tensor, blocked: float) -> None:
    additive = torch.zeros(allowed.shape).masked_fill(~allowed, blocked)

    assert torch.equal(masks.from_true_blocked(~allowed), allowed)
    for dtype in (torch.int64, torch.uint8, torch.float32):
        assert torch.equal(masks.from_one_blocked((~allowed).to(dtype)), allowed)
        assert torch.equal(masks.from_zero_blocked(allowed.to(dtype)), allowed)
    assert torch.equal(masks.from_additive(additive), allowed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_additive_masks(dtype: torch.dtype) -> None:
    """Neither holds −10,000 and its neighbours exactly."""
    for blocked in (-1e4, torch.finfo(dtype).min):
        assert masks.from_additive(torch.tensor([0.0, blocked], dtype=dtype)).tolist() == [True, False]


@examples
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.sampled_from([torch.int32, torch.int64]))
def test_lengths_hide_the_padding_and_come_back(lengths: list[int], dtype: torch.dtype) -> None:
    valid = masks.valid_tokens(torch.tensor(lengths, dtype=dtype), 6)

    assert valid.tolist() == [[True] * length + [False] * (6 - length) for length in lengths]
    assert torch.equal(masks.key_padding(torch.tensor(lengths), 6), valid[:, None, :])
    assert masks.lengths_from_attention_mask(valid.long()).tolist() == lengths
    assert masks.lengths_from_attention_mask(valid).tolist() == lengths


@examples
@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_only_right_padding_has_lengths(row: list[bool]) -> None:
    attention_mask = torch.tensor([row]).long()
    if row == sorted(row, reverse=True):
        assert masks.lengths_from_attention_mask(attention_mask).tolist() == [sum(row)]
    else:
        with pytest.raises(ValueError, match="must be right-padded, ones then zeros; row 0 was"):
            masks.lengths_from_attention_mask(attention_mask)


def test_combining_broadcasts_and_nothing_stays_nothing() -> None:
    together: Any = masks.combine(masks.causal(3), masks.key_padding(torch.tensor([3, 1]), 3))

    assert together.int().tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
        [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
    ]
    assert masks.combine(None, None) is None
    assert masks.combine() is None


@pytest.mark.parametrize(
    ("convert", "values", "error", "message"),
    [
        (masks.from_true_blocked, [0, 1], TypeError, "must be boolean with True = blocked, was torch.int64"),
        (masks.from_one_blocked, [0, 2], ValueError, "must hold only 0 and 1, but holds 2"),
        (masks.from_zero_blocked, [0.0, -1e9], ValueError, "must hold only 0 and 1, but holds -1e+09"),
        (masks.from_zero_blocked, [float("nan")], ValueError, "but holds nan"),
        (masks.from_additive, [0, 1], TypeError, "must be floating point, was torch.int64"),
        (masks.from_additive, [0.0, -2.5], ValueError, "values up to -1000 (blocked), but holds -2.5"),
        (masks.from_additive, [float("inf")], ValueError, "but holds inf"),
        (masks.from_additive, [float("nan")], ValueError, "but holds nan"),
        (masks.lengths_from_attention_mask, [1, 0], ValueError, "must have the shape [B, T], was [2]"),
        (masks.lengths_from_attention_mask, [[1, 1], [0, 1]], ValueError, "row 1 was [0, 1]"),
        (masks.lengths_from_attention_mask, [[1, 3]], ValueError, "must hold only 0 and 1, but holds 3"),
    ],
)
def test_a_mask_of_another_convention_is_refused(
    convert: Any, values: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        convert(torch.tensor(values))


@pytest.mark.parametrize(
    ("shape", "advice", "index"),
    [
        ((4, 4), "was [4, 4]; if its rows are queries, pass seen[None]; if they", (None,)),
        (
            (3, 4),
            "was [3, 4]; if its rows are queries, pass seen[None]; if they are sequences, seen[:, None]",
            (slice(None), None),
        ),
        (
            (3, 1, 4, 4),
            "was [3, 1, 4, 4]; a mask is the same for all heads: pass seen[:, 0]",
            (slice(None), 0),
        ),
    ],
)
def test_a_mask_of_another_shape_is_refused_with_the_index_that_helps(
    shape: tuple[int, ...], advice: str, index: tuple[Any, ...]
) -> None:
    mask = torch.ones(shape, dtype=torch.bool)

    with pytest.raises(ValueError, match=re.escape(advice)):
        masks.check(mask, batch=3, queries=4, keys=4, name="seen")
    masks.check(mask[index], batch=3, queries=4, keys=4)


@pytest.mark.parametrize(("width", "reach"), [(1, 0), (2, 1), (5, 2), (100, 6)])
def test_a_window_is_as_far_to_both_sides(width: int, reach: int) -> None:
    near = masks.window(7, width)

    assert near.tolist() == [[[abs(i - j) <= reach for j in range(7)] for i in range(7)]]
