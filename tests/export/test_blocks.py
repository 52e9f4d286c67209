"""Local attention in blocks sees what a window lets it see, and takes memory in proportion to T."""

import dataclasses
from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.encoders import seeded
from tests.exports import run, session_of
from tests.numerics import close

from polyhead_export.graphs import build_graph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.parity import reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder, EncoderConfig

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
CAUSAL = dataclasses.replace(LOCAL, local_window=16, causal=True, fused=True)


@cache
def graph_of(config: EncoderConfig) -> tuple[Encoder, ort.InferenceSession]:
    """An encoder, and its graph."""
    encoder = seeded(config, 2)
    return encoder, session_of(build_graph(encoder, FastGraph(), pack=True))


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 50), (1, 64), (4, 65), (4, 150), (2, 333)])
@pytest.mark.parametrize("config", [LOCAL, LONG, CAUSAL], ids=["masked", "without a mask", "causal"])
def test_a_graph_with_local_layers_is_what_pytorch_gives(
    config: EncoderConfig, batch: int, tokens: int
) -> None:
    encoder, session = graph_of(config)
    inputs = sample_inputs(config, FastGraph(), batch, tokens, seed=4)

    close(run(session, inputs)["output"], reference_outputs(encoder, FastGraph(), inputs)["output"])


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


def test_the_axis_of_blocks_varies() -> None:
    """A runtime may give a value of a fixed size the memory of another."""
    config = EncoderConfig(d_model=8, heads=1, layers=1, feed_forward=8, local_window=4)
    model = build_graph(Encoder(config).eval(), FastGraph(), pack=True)

    shapes = [node.inputs[0].shape for node in model.graph if node.op_type == "NonZero" and node.inputs[0]]
    (of_blocks,) = (shape for shape in shapes if shape is not None and len(shape) == 2)
    assert not isinstance(of_blocks[1], int)
