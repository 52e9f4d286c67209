"""Attention masks. One convention throughout: boolean, True = may attend.

Attention takes masks of the shape [B or 1, Tq or 1, Tk]: queries are rows, keys are columns.
The `from_…` functions convert from the other conventions in use, and keep the shape.
"""

import torch
from torch import Tensor

BLOCKED_BELOW = -1_000.0
"""The largest value that blocks in an additive mask.

Masks block with −10,000, −1e9, the dtype's minimum or −inf, all well below this. No score comes near it:
exp(−1,000) is 0 even in double precision.
"""


def from_true_blocked(mask: Tensor) -> Tensor:
    """Convert a boolean mask with True = blocked, the convention of `torch.nn.MultiheadAttention`.

    Raises:
        TypeError: `mask` is not boolean.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean with True = blocked, was {mask.dtype}; see from_one_blocked")
    return ~mask


def from_one_blocked(mask: Tensor) -> Tensor:
    """Convert a numeric mask with 1 = blocked and 0 = may attend.

    Raises:
        ValueError: `mask` holds values other than 0 and 1.
    """
    _require_zeros_and_ones(mask)
    return mask == 0


def from_zero_blocked(mask: Tensor) -> Tensor:
    """Convert a numeric mask with 0 = blocked and 1 = may attend, the convention of Hugging Face.

    Raises:
        ValueError: `mask` holds values other than 0 and 1.
    """
    _require_zeros_and_ones(mask)
    return mask == 1


def from_additive(mask: Tensor) -> Tensor:
    """Convert a mask that is added to the scores: 0 = may attend, −10,000 … −inf = blocked.

    Raises:
        TypeError: `mask` is not floating point.
        ValueError: `mask` holds other values; they would be a bias, which a boolean mask cannot express.
    """
    if not mask.is_floating_point():
        raise TypeError(f"an additive mask must be floating point, was {mask.dtype}")
    allowed = mask == 0
    wrong = ~(allowed | (mask <= BLOCKED_BELOW))
    if wrong.any():
        raise ValueError(
            f"an additive mask must hold 0 (may attend) and values up to {BLOCKED_BELOW:g} (blocked), "
            f"but holds {mask[wrong][0].item():g}"
        )
    return allowed


def causal(tokens: int, queries: Tensor | None = None, *, device: torch.device | None = None) -> Tensor:
    """Return the causal mask [1, T, T]: every token sees itself and the tokens before it.

    With positions of queries [B, Tq], the mask [B, Tq, T] of these.
    """
    position = torch.arange(tokens, device=device)
    queries = position[None] if queries is None else queries
    return queries[..., None] >= position


def window(
    tokens: int, width: int, queries: Tensor | None = None, *, device: torch.device | None = None
) -> Tensor:
    """Return the local mask [1, T, T]: every token sees those at most width // 2 away.

    With positions of queries [B, Tq], the mask [B, Tq, T] of these.
    """
    position = torch.arange(tokens, device=device)
    queries = position[None] if queries is None else queries
    # Two comparisons of one axis each: the differences of all pairs would take eight times the memory.
    return (position <= queries[..., None] + width // 2) & (position >= queries[..., None] - width // 2)


def valid_tokens(lengths: Tensor, tokens: int) -> Tensor:
    """Mark the positions that hold tokens rather than padding: lengths [B] → [B, T]."""
    return torch.arange(tokens, device=lengths.device)[None, :] < lengths[:, None]


def key_padding(lengths: Tensor, tokens: int) -> Tensor:
    """Hide padded keys from every query: lengths [B] → [B, 1, T]."""
    return valid_tokens(lengths, tokens)[:, None, :]


def combine(*masks: Tensor | None) -> Tensor | None:
    """Return the intersection of masks; None allows everything, and None alone gives None."""
    combined: Tensor | None = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else combined & mask
    return combined


def check(mask: Tensor, *, batch: int, queries: int, keys: int, name: str = "mask") -> None:
    """Check a mask that is passed to attention; `name` is the argument's.

    Raises:
        TypeError: `mask` is not boolean.
        ValueError: `mask` does not have the shape [B or 1, Tq or 1, Tk].
    """
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be boolean with True = may attend, was {mask.dtype}; polyhead_model.masks converts"
        )
    fits = mask.ndim == 3 and mask.shape[0] in (1, batch) and mask.shape[1] in (1, queries)
    if not fits or mask.shape[2] != keys:
        advice = {
            2: f"; if its rows are queries, pass {name}[None]; if they are sequences, {name}[:, None]",
            4: f"; a mask is the same for all heads: pass {name}[:, 0]",
        }.get(mask.ndim, "")
        raise ValueError(
            f"{name} must have the shape [B or 1, Tq or 1, Tk] with B = {batch}, Tq = {queries}, "
            f"Tk = {keys}, was {list(mask.shape)}{advice}"
        )


def lengths_from_attention_mask(attention_mask: Tensor) -> Tensor:
    """Convert a right-padded Hugging Face `attention_mask` [B, T] (1 = token) to lengths [B], int64.

    Raises:
        ValueError: A row is not ones followed by zeros: left padding and holes have no length.
    """
    if attention_mask.ndim != 2:
        raise ValueError(f"attention_mask must have the shape [B, T], was {list(attention_mask.shape)}")
    tokens = attention_mask.shape[1]
    valid = attention_mask if attention_mask.dtype == torch.bool else from_zero_blocked(attention_mask)
    lengths = valid.sum(dim=1)
    wrong = (valid != valid_tokens(lengths, tokens)).any(dim=1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            "attention_mask must be right-padded, ones then zeros; "
            f"row {row} was {attention_mask[row].int().tolist()}"
        )
    return lengths


def _require_zeros_and_ones(mask: Tensor) -> None:
    wrong = (mask != 0) & (mask != 1)
    if wrong.any():
        raise ValueError(f"mask must hold only 0 and 1, but holds {mask[wrong][0].item():g}")
