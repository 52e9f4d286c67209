"""The precisions that a family can be exported in, and an encoder made ready for one.

What goes in and comes out of a graph is the same in each: clients do not notice.
"""

from collections.abc import Mapping
from typing import Literal

import torch

from polyhead_model import Encoder

Precision = Literal["fp32", "fp16", "bf16"]

DTYPES: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""What weights are stored in, and what is computed between a graph's inputs and outputs."""


def in_precision(encoder: Encoder, precision: Precision) -> Encoder:
    """The encoder that is traced for a precision; in fp32 it is `encoder` itself.

    In 16 bits it is a copy with rounded weights, whose projections of queries, keys and values are one
    matrix product: a GPU is better filled by one large product than by three.
    """
    return encoder if precision == "fp32" else encoder.fuse().to(DTYPES[precision])
