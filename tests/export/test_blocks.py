"""Local attention in blocks sees what a window lets it see, and takes memory in proportion to T."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from tests.encoders import seeded
from tests.exports import run, session_of
from tests.numerics import close

from polyhead_export.blocks import Blocks
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.parity import reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder, EncoderConfig, masks
from polyhead_model.attention import scaled_dot_product_attention
from polyhead_model.packing import Packed, split_heads

HIDDEN = -1e9


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [2, 16, 128])
@pytest.mark.parametrize(
    "lengths",
    [[1], [64], [65], [200], [300, 0, 1, 129, 64, 63, 65, 192, 193], [5, 3, 0, 9]],
)
def test_blocks_compute_what_a_window_does(lengths: list[int], width: int, causal: bool) -> None:
    torch.manual_seed(1)
    tokens, heads, inner = max(lengths), 2, 6
    q, k, v = torch.randn(3, len(lengths), tokens, inner).unbind(0)
    counts = torch.tensor(lengths, dtype=torch.int32)
    layout = Packed(counts, tokens)
    blocks = Blocks(counts, tokens, layout, width=width, causal=causal, hidden=HIDDEN)

    queries = split_heads(blocks.queries(layout.pack(q)), heads)
    keys, values = (blocks.keys(layout.pack(each), heads) for each in (k, v))
    context, _ = scaled_dot_product_attention(queries, keys, values, bias=blocks.bias)
    packed = blocks.pack(context.transpose(1, 2).flatten(2))

    mask: Any = masks.combine(
        masks.key_padding(counts, tokens),
        masks.window(tokens, width),
        masks.causal(tokens) if causal else None,
    )
    expected, _ = scaled_dot_product_attention(
        split_heads(q, heads), split_heads(k, heads), split_heads(v, heads), mask[:, None]
    )
    padded = layout.pad(packed)
    for row, length in enumerate(lengths):
        close(padded[row, :length], expected.transpose(1, 2).flatten(2)[row, :length])


LOCAL = EncoderConfig(
    d_model=16,
    heads=2,
    layers=3,
    feed_forward=24,
    local_window=128,
    global_every=3,
    rotary_base=160_000.0,
    local_rotary_base=10_000.0,
    norm="pre",
)


LONG = dataclasses.replace(LOCAL, vocabulary=30, positions=8192)


@cache
def graph_of(config: EncoderConfig) -> tuple[Encoder, ort.InferenceSession]:
    """An encoder, and its graph."""
    encoder = seeded(config, 2)
    return encoder, session_of(build_graph(encoder, FastGraph(), pack=True))


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 50), (4, 150), (2, 333)])
@pytest.mark.parametrize("config", [LOCAL, LONG], ids=["masked", "without a mask"])
def test_a_graph_with_local_layers_is_what_pytorch_gives(
    config: EncoderConfig, batch: int, tokens: int
) -> None:
    encoder, session = graph_of(config)
    inputs = sample_inputs(config, FastGraph(), batch, tokens, seed=4)

    close(run(session, inputs)["output"], reference_outputs(encoder, FastGraph(), inputs)["output"])


def test_a_sequence_is_what_it_is_alone_where_padding_is_hidden_by_keys() -> None:
    _, session = graph_of(LONG)
    lengths = np.array([700, 3, 0, 64], np.int32)
    ids = np.random.default_rng(5).integers(0, 30, (4, 700))

    (together,) = session.run(["output"], {"input_ids": ids, "lengths": lengths})

    for row, length in enumerate(lengths):
        feeds = {"input_ids": ids[row : row + 1, : max(1, length)], "lengths": lengths[row : row + 1]}
        (alone,) = session.run(["output"], feeds)
        close(together[row, : max(1, length)], alone[0])
        assert not together[row, length:].any()


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig(d_model=8, heads=1, layers=1, feed_forward=8, local_window=4),
        dataclasses.replace(LONG, d_model=8, heads=1),
    ],
    ids=["a local layer", "all layers"],
)
def test_no_value_grows_with_the_square_of_tokens(config: EncoderConfig) -> None:
    model = build_graph(Encoder(config).eval(), FastGraph(), pack=True)
    proto = ir.to_proto(model)
    named = {each.name for each in proto.graph.output}
    proto.graph.output.extend(
        ir.to_proto(output)
        for node in model.graph
        for output in node.outputs
        if output.name not in named and output.type is not None
    )
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])

    def largest(tokens: int) -> int:
        x = np.zeros((1, tokens, 8), np.float32)
        main = {"input_ids": np.zeros((1, tokens), np.int64)} if config.vocabulary else {"x": x}
        feeds = main | {"lengths": np.array([tokens], np.int32)}
        return max(int(each.size) for each in session.run(None, feeds))

    assert largest(2048) <= 2 * largest(1024)
