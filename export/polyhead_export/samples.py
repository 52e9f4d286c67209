"""Random inputs of a family, ragged as in real traffic.

Shape letters: B batch, T tokens, D d_model.
"""

import torch
from torch import Tensor

from polyhead_model import EncoderConfig


def sample_inputs(config: EncoderConfig, batch: int, tokens: int, *, seed: int) -> dict[str, Tensor]:
    """Random input of size (B, T), by input name.

    The first sequence is as long as T, the others have any length from 0 to T, and what stands in
    their padding is as random as the rest.
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
    return inputs
