"""The precisions that a family can be exported in.

A graph's inputs and outputs have the same datatypes in every precision, so clients see no difference.
"""

from collections.abc import Mapping
from typing import Literal

import torch

from polyhead_model import Encoder

Precision = Literal["fp32", "fp16", "bf16", "int8"]

DTYPES: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.float32,
}
"""The dtype of the traced encoder. In int8, `polyhead_export.quantisation` rewrites the traced graph."""

IN_16_BITS = frozenset[Precision]({"fp16", "bf16"})


def in_precision(encoder: Encoder, precision: Precision) -> Encoder:
    """Return the encoder to trace for a precision; in fp32 and int8 that is `encoder` itself.

    In 16 bits it is a copy with rounded weights and a fused projection of queries, keys and values: one large
    matrix product uses a GPU better than three small ones.
    """
    if precision not in IN_16_BITS:
        return encoder
    # Both return a copy. Attention to the memory alone cannot be fused.
    copy = encoder.split() if encoder.config.cross_attention == "alone" else encoder.fuse()
    return copy.to(DTYPES[precision])
