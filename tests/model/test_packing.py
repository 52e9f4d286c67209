"""Packed tokens: nothing is computed for padding, and the result is that of padded ones."""

import math
from typing import Any

import pytest
import torch
from tests.numerics import close
from torch import Tensor, nn

from polyhead_model import Encoder, EncoderConfig
from polyhead_model.task_heads import Classifier, Pooling

TOKEN_IDS = {"vocabulary": 30, "positions": 40, "embedding_norm": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "attention alone": {"feed_forward": None},
    "post-norm": {},
    "pre-norm, causal": {"norm": "pre", "causal": True, "final_norm": True},
    "fused, pruned heads": {"fused": True, "kept_heads": ((0, 2), (1,))},
    "token ids with types": {**TOKEN_IDS, "types": 2, "pooling": "mean"},
    "positions that padding ids do not count in": {**TOKEN_IDS, "padding_id": 1, "pooling": "last"},
    "dropped tokens": {**TOKEN_IDS, "token_dropout_id": 3, "pooling": "cls"},
    "narrow embeddings, a shared layer": {**TOKEN_IDS, "embedding_width": 8, "shared_layers": True},
    "rotations, windows": {
        **TOKEN_IDS,
        "rotary_base": 100.0,
        "local_rotary_base": 10.0,
        "local_window": 4,
        "global_every": 2,
    },
    "relative positions": {"relative_buckets": 8, "relative_distance": 6},
    "disentangled, with a convolution": {
        **TOKEN_IDS,
        "position_embeddings": False,
        "disentangled": {"terms": ["c2p", "p2c"], "span": 4, "distance": 5, "norm": True},
        "convolution": {"width": 3, "groups": 2},
    },
    "one such layer": {
        "layers": 1,
        "fused": True,
        "disentangled": {"terms": ["p2c"], "span": 3, "shared": True},
        "convolution": {"width": 5},
    },
    "a mask of the caller's": {"mask_input": True},
}
LENGTHS = torch.tensor([7, 0, 3, 1, 9, 0])
TOKENS = 9


def build(**fields: Any) -> Encoder:
    torch.manual_seed(8)
    encoder = Encoder(EncoderConfig(**{"d_model": 24, "heads": 3, "layers": 2, "feed_forward": 40, **fields}))
    for parameter in encoder.parameters():  # biases and norms, too
        nn.init.normal_(parameter, std=0.3)
    return encoder.eval()


def inputs_of(encoder: Encoder) -> dict[str, Tensor]:
    torch.manual_seed(9)
    config, batch = encoder.config, len(LENGTHS)
    inputs: dict[str, Tensor] = {"lengths": LENGTHS}
    if config.vocabulary is None:
        inputs["x"] = torch.randn(batch, TOKENS, config.d_model)
        for row, length in zip(inputs["x"], LENGTHS, strict=True):
            row[length:] = math.nan
    else:
        inputs["x"] = torch.randint(config.vocabulary, (batch, TOKENS))
    if config.types:
        inputs["token_type_ids"] = torch.randint(config.types, (batch, TOKENS))
    if config.mask_input:
        inputs["mask"] = torch.rand(batch, TOKENS, TOKENS) < 0.7
    if not config.shared_layers:
        inputs["head_mask"] = torch.rand(batch, config.layers, config.heads)
    return inputs


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_tokens_give_what_padded_ones_give(variant: str) -> None:
    encoder = build(**VARIANTS[variant])
    inputs = inputs_of(encoder)

    padded = encoder(**inputs, need_weights=True)
    packed = encoder(**inputs, need_weights=True, pack=True)

    close(packed.output, padded.output)
    for mine, theirs in zip(packed.attention, padded.attention, strict=True):
        close(mine, theirs, scale=1)
    if encoder.config.pooling is not None:
        close(packed.pooled, padded.pooled)


@pytest.mark.parametrize("pooling", ["cls", "last"])
@pytest.mark.parametrize("variant", list(VARIANTS)[1:])  # the first has no blocks
def test_pooled_tokens_alone_are_what_they_are_among_others(variant: str, pooling: Pooling) -> None:
    classifier = Classifier(labels=("no", "yes"), pooling=pooling)
    encoder = build(**VARIANTS[variant] | {"pooling": pooling, "classifier": classifier})
    inputs = inputs_of(encoder)

    every = encoder(**inputs)

    for pack in (False, True):
        alone = encoder(**inputs, pack=pack, pooled_only=True)
        assert alone.output.shape == (len(LENGTHS), 1, 24)
        close(alone.pooled, every.pooled)
        close(alone.logits, every.logits)
    del inputs["lengths"]
    if "x" in inputs:
        inputs["x"] = inputs["x"].nan_to_num()
    close(encoder(**inputs, pooled_only=True).pooled, encoder(**inputs).pooled)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pooling": "mean"},
        {"pooling": "cls", "classifier": Classifier(labels=("no", "yes"), pooling="last")},
        {"pooling": "cls", "classifier": Classifier(labels=("no", "yes"), pooling=None)},
        {"pooling": "cls", "feed_forward": None},
        {"pooling": "cls", "cross_attention": "alone"},
    ],
)
def test_where_other_tokens_are_read_pooled_ones_are_not_computed_alone(fields: dict[str, Any]) -> None:
    encoder = build(**fields)
    memory = {"memory": torch.randn(2, 4, 24)} if "cross_attention" in fields else {}

    with pytest.raises(ValueError, match="pooled_only needs blocks of self-attention, and one pooled token"):
        encoder(torch.randn(2, 5, 24), **memory, pooled_only=True)


@pytest.mark.parametrize("cross_attention", ["alone", "after_self"])
def test_a_memory_is_packed_too(cross_attention: str) -> None:
    encoder = build(cross_attention=cross_attention)
    inputs = inputs_of(encoder) | {"memory": torch.randn(len(LENGTHS), 5, 24)}
    del inputs["head_mask"]
    inputs["memory_lengths"] = torch.tensor([5, 2, 0, 1, 3, 4])

    padded = encoder(**inputs, need_weights=True)
    packed = encoder(**inputs, need_weights=True, pack=True)

    close(packed.output, padded.output)
    for mine, theirs in zip(
        packed.cross_attention or packed.attention, padded.cross_attention or padded.attention, strict=True
    ):
        close(mine, theirs, scale=1)


def test_while_dropout_is_active_padded_tokens_are_computed() -> None:
    encoder = build(dropout=0.5).train()
    inputs = inputs_of(encoder)

    outputs = []
    for pack in (False, True):
        torch.manual_seed(4)
        outputs.append(encoder(**inputs, pack=pack).output)

    assert torch.equal(*outputs)


def test_without_lengths_there_is_nothing_to_pack() -> None:
    encoder = build()
    x = torch.randn(2, 5, 24)

    assert torch.equal(encoder(x, pack=True).output, encoder(x).output)
