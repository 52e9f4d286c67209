"""What attention in a form is computed from, and what must come out.

Shape letters: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gpu.card import DTYPES
from gpu.forms import BLOCKED, Form, Layout, Mask
from gpu.plan import Precision


def form_inputs(
    form: Form, precision: Precision, size: tuple[int, int, int, int], *, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Random inputs of (B, T, H, K) on the CPU, ragged where the form has a mask, and the lengths [B]."""
    batch, tokens = size[:2]
    random = torch.Generator().manual_seed(seed)
    dtype = DTYPES[precision]
    lengths = torch.full((batch,), tokens)
    if form.mask != "none":
        lengths = torch.randint(1, tokens + 1, (batch,), generator=random)
        lengths[0], lengths[-1] = tokens, 0  # and one that is all padding
    inputs = {name: each.to(dtype) for name, each in _tensors(form.layout, size, random).items()}
    visible = torch.arange(tokens) < lengths[:, None]  # [B, T]
    square = visible[:, None, None, :].expand(batch, 1, tokens, tokens)
    masks: dict[Mask, dict[str, Tensor]] = {
        "none": {},
        "lengths": {"lengths": lengths.to(torch.int32)},
        "key mask": {"key_mask": visible.to(torch.int32)},
        "bias": {
            "bias": torch.zeros(square.shape).masked_fill(~square, BLOCKED[precision]).to(dtype).contiguous()
        },
        "mask": {"mask": square.contiguous()},
        "key lengths": {"key_lengths": lengths.to(torch.int64)},
    }
    return inputs | masks[form.mask], lengths


def expected(form: Form, inputs: Mapping[str, Tensor], lengths: Tensor, heads: int) -> Tensor:
    """What comes out, computed in fp32 by the equation, as [B, T, H, K]."""
    q, k, v = _by_head(form.layout, {name: each.float() for name, each in inputs.items()}, heads)
    scores = torch.einsum("bqhk,bthk->bhqt", q, k) * q.shape[-1] ** -0.5
    blocked = torch.arange(q.shape[1], device=q.device) >= lengths.to(q.device)[:, None]
    weights = scores.masked_fill(blocked[:, None, None, :], float("-inf")).softmax(-1)
    return torch.einsum("bhqt,bthk->bqhk", weights, v)


def by_token(form: Form, out: Tensor, heads: int) -> Tensor:
    """A form's output as [B, T, H, K]."""
    return out.transpose(1, 2) if form.layout == "heads" else _split(out, heads)


def _tensors(layout: Layout, size: tuple[int, int, int, int], random: torch.Generator) -> dict[str, Tensor]:
    """What attention is computed from, in fp32."""
    batch, tokens, heads, width = size
    if layout == "projected":
        inner = heads * width
        return {
            "x": torch.randn(batch, tokens, inner, generator=random),
            "weight": torch.randn(inner, 3 * inner, generator=random) * inner**-0.5,
            "projection_bias": torch.randn(3 * inner, generator=random) / 4,
        }
    q, k, v = (torch.randn(batch, tokens, heads, width, generator=random) for _ in range(3))
    if layout == "packed":
        return {"qkv": torch.stack((q, k, v), dim=3)}
    if layout == "heads":
        return {name: each.transpose(1, 2).contiguous() for name, each in zip("qkv", (q, k, v), strict=True)}
    return {name: each.flatten(2) for name, each in zip("qkv", (q, k, v), strict=True)}


def _by_head(layout: Layout, inputs: Mapping[str, Tensor], heads: int) -> Sequence[Tensor]:
    """q, k and v as [B, T, H, K]."""
    if layout == "packed":
        return inputs["qkv"].unbind(3)
    if layout == "projected":
        projected = inputs["x"] @ inputs["weight"] + inputs["projection_bias"]
        return [_split(each, heads) for each in projected.chunk(3, dim=-1)]
    if layout == "heads":
        return [inputs[name].transpose(1, 2) for name in "qkv"]
    return [_split(inputs[name], heads) for name in "qkv"]


def _split(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·K] → [B, T, H, K]."""
    return x.reshape(*x.shape[:2], heads, -1)
