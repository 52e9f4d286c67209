"""Random inputs for a family's graphs, with ragged lengths as in real traffic.

Shape letters: B batch, T tokens, D d_model.
"""

import torch
from torch import Tensor

from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig


def sample_inputs(
    config: EncoderConfig, kind: GraphKind, batch: int, tokens: int, *, seed: int
) -> dict[str, Tensor]:
    """Return random inputs of size (B, T) for a kind of graph, by input name.

    The first sequence has length T, the others any length from 0 to T. Padding holds random values too, so
    that a graph that reads it is found out.
    """
    random = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=random)

    inputs: dict[str, Tensor] = {}
    if config.vocabulary is None:
        inputs["x"] = torch.randn(batch, tokens, config.d_model, generator=random)
    else:
        inputs["input_ids"] = integers(config.vocabulary, batch, tokens)
        if config.types:
            inputs["token_type_ids"] = integers(config.types, batch, tokens)
    lengths = integers(tokens + 1, batch).to(torch.int32)
    lengths[0] = tokens
    inputs["lengths"] = lengths
    if config.mask_input:
        inputs["mask"] = torch.rand(batch, tokens, tokens, generator=random) < 0.7
    if config.head_mask_input:
        inputs["head_mask"] = torch.rand(batch, config.layers, config.heads, generator=random).round(
            decimals=1
        )
    return {**inputs, **kind.samples(config, batch, tokens, random)}
