"""Random inputs for a family's graphs, with ragged lengths as in real traffic.

Shape letters: B batch, T tokens, D d_model.
"""

import torch
from torch import Tensor

from polyhead_export.signature import GraphKind, inputs_of
from polyhead_model import EncoderConfig


def sample_inputs(
    config: EncoderConfig, kind: GraphKind, batch: int, tokens: int, *, seed: int
) -> dict[str, Tensor]:
    """Return random inputs of size (B, T) for a kind of graph, by input name.

    The first sequence has length T, the others any length from 0 to T. Padding holds random values too, so
    that a graph that reads it is found out. A memory is longer or shorter than T. In a third of the seeds
    from 1, a mask lets everything pass.
    """
    random = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=random)

    def lengths_to(longest: int) -> Tensor:
        lengths = integers(longest + 1, batch).to(torch.int32)
        lengths[0] = longest
        return lengths

    inputs: dict[str, Tensor] = {}
    if config.vocabulary is None:
        inputs[config.main_input] = torch.randn(batch, tokens, config.d_model, generator=random)
    else:
        inputs[config.main_input] = integers(config.vocabulary, batch, tokens)
        _fill_up(inputs[config.main_input], config)
        if config.classifier is not None and config.classifier.padding_id is not None:
            inputs[config.main_input][::2, tokens // 2 :] = config.classifier.padding_id
        if config.types:
            inputs["token_type_ids"] = integers(config.types, batch, tokens)
    memory_tokens = tokens // 3 + 1 if seed % 2 else 2 * tokens + 1
    if config.cross_attention is not None:
        inputs["memory"] = torch.randn(batch, memory_tokens, config.d_model, generator=random)
    inputs["lengths"] = lengths_to(tokens)
    if config.cross_attention is not None:
        inputs["memory_lengths"] = lengths_to(memory_tokens).flip(0)
    # Not in the same seeds.
    for spec, keys, open_seed in (("mask", tokens, 2), ("memory_mask", memory_tokens, 1)):
        if any(spec == each.name for each in inputs_of(config, kind)):
            visible = 1.0 if seed % 3 == open_seed else 0.7
            inputs[spec] = torch.rand(batch, tokens, keys, generator=random) < visible
    if config.head_mask_input:
        inputs["head_mask"] = torch.rand(batch, config.layers, config.heads, generator=random).round(
            decimals=1
        )
    return {**inputs, **kind.samples(config, batch, tokens, random)}


def _fill_up(ids: Tensor, config: EncoderConfig) -> None:
    """Fill up every second sequence as queries are, from its middle on: beyond the reach of a window, too."""
    fill = None if config.token_vectors is None else config.token_vectors.expansion_id
    if fill is None:
        return
    start = max(ids.shape[1] // 2, 1)
    ids[::2, start - 1] = (fill + 1) % (config.vocabulary or 1)
    ids[::2, start:] = fill
