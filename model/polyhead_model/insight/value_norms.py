"""Norm-weighted attention: what a head really moves, not only where it looks.

A head often parks its attention on a token whose value is almost zero, such as [SEP]. Weighting by the length
of what each key contributes shows it: Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing
Transformers with Vector Norms" (EMNLP), per head.
"""

import torch
from torch import Tensor


def output_factors(w_o: Tensor, heads: int) -> Tensor:
    """Return for each head a small matrix that lengthens vectors as its part of W_O does.

    With the QR decomposition W_O^h = Q R, ‖v W_O^h‖ = ‖v Rᵀ‖: T·K² multiplications instead of T·K·D, and,
    unlike with a Gram matrix, no difference of large numbers under a root.

    Args:
        w_o: The weight of the output projection [D, H·K].
        heads: H.

    Returns:
        fp32 [H, K, min(D, K)].
    """
    parts = w_o.detach().float().unflatten(1, (heads, -1)).transpose(0, 1)  # (H, D, K)
    return torch.linalg.qr(parts).R.transpose(1, 2).contiguous()


def value_norms(values: Tensor, factors: Tensor) -> Tensor:
    """Compute ‖v W_O^h‖₂ of every key, in fp32 (Kobayashi et al. 2020).

    Args:
        values: The projected values [B, T, H·K], with their bias.
        factors: [H, K, min(D, K)] of `output_factors`.

    Returns:
        [B, H, T]; in padding too, where it means nothing.
    """
    heads = values.float().unflatten(2, factors.shape[:2]).transpose(1, 2)  # (B, H, T, K)
    return torch.linalg.vector_norm(heads @ factors, dim=-1)


def norm_weighted(attention: Tensor, norms: Tensor) -> Tensor:
    """Weight attention by value norms, and scale each row to sum to 1 again.

    Args:
        attention: [B, H, T, T].
        norms: [B, H, T] of `value_norms`; finite, in padding too.

    Returns:
        [B, H, T, T]; a row without attention stays zero.
    """
    weighted = attention * norms[:, :, None, :]
    return weighted / weighted.sum(-1, keepdim=True).clamp(min=torch.finfo(weighted.dtype).tiny)
