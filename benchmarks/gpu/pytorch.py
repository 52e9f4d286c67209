"""The same encoder in PyTorch, compiled for exactly one size: padded, and packed (varlen)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead_model import Encoder
from polyhead_model.attention import PADDED
from polyhead_model.packing import Packed


def attend_sdpa(
    query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None, /, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention by PyTorch's fused operator."""
    queries, keys = options.get("layouts", PADDED)
    q, k, v = queries.by_head(query, heads), keys.by_head(key, heads), keys.by_head(value, heads)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None])
    return queries.merge_heads(attended), None


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None, /, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention of packed tokens by flash attention, which CPUs do not have."""
    if not query.is_cuda:
        return attend_sdpa(query, key, value, heads, mask, **options)
    from torch.nn.attention.varlen import varlen_attn

    packed: Packed = options["layouts"][0]
    before = torch.cat((packed.starts, packed.ends[-1:])).int()
    q, k, v = (each[0].reshape(each.shape[1], heads, -1) for each in (query, key, value))
    attended: Any = varlen_attn(q, k, v, before, before, *[packed.exist.shape[1]] * 2)
    return attended.flatten(1)[None], None


def compiled(encoder: Encoder, ids: Tensor, lengths: Tensor, *, pack: bool) -> Callable[[], object]:
    """Compile a second encoder over the same weights.

    Layer by layer, since equal layers share compiled code: whole encoders would take minutes.

    Args:
        encoder: The encoder, on the device.
        ids: Token ids [B, T].
        lengths: Of the sequences [B].
        pack: Whether only the tokens that exist are computed. Where they lie is found in each run.
    """
    torch.compiler.reset()
    with torch.device("meta"):
        twin = Encoder(encoder.config)
    twin.load_state_dict(encoder.state_dict(), assign=True)
    backend = "inductor" if ids.is_cuda else "eager"  # tracing is enough to try the code
    for layer in twin.eval().layers:
        layer.compile(backend=backend, dynamic=False, fullgraph=True)
    some = None if not pack and bool((lengths == ids.shape[1]).all()) else lengths
    attend = attend_packed if pack else attend_sdpa
    return torch.no_grad()(lambda: twin(ids, some, attend=attend, pack=pack))
