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
from polyhead_export.kinds.sparse import SparseGraph
from polyhead_export.parity import reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.task_heads import Splade

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


def with_all_values(model: ir.Model) -> ort.InferenceSession:
    """A session of a graph that gives every value."""
    proto = ir.to_proto(model)
    named = {each.name for each in proto.graph.output}
    proto.graph.output.extend(
        ir.to_proto(output)
        for node in model.graph
        for output in node.outputs
        if output.name not in named and output.type is not None
    )
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


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
    session = with_all_values(build_graph(Encoder(config).eval(), FastGraph(), pack=True))

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


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (
            EncoderConfig(d_model=8, heads=2, layers=1, vocabulary=30, splade=Splade(pooling="sum")),
            SparseGraph(),
        ),
        (EncoderConfig(d_model=8, heads=2, layers=1, pooling="mean"), FastGraph()),
    ],
    ids=["words of tokens", "tokens"],
)
def test_sums_of_blocks_are_as_large_as_their_graph_says(config: EncoderConfig, kind: GraphKind) -> None:
    """What is traced has one block; a runtime may give two values whose sizes have one name one memory."""
    encoder = seeded(config, 3)
    model = build_graph(encoder, kind)
    inputs = sample_inputs(config, kind, 5, 200, seed=1)

    values = run(with_all_values(model), inputs)

    for name, expected in reference_outputs(encoder, kind, inputs).items():
        close(values[name], expected)
    declared = [each for node in model.graph for each in node.outputs if each.shape is not None]
    sizes = [
        (str(dimension), size)
        for each in declared
        for dimension, size in zip(each.shape or (), values[str(each.name)].shape, strict=True)
        if str(dimension) != "None"
    ]
    known = {name: size for name, size in sizes if name.isidentifier()}
    assert {5, 200} <= {*known.values()}
    for formula, size in sizes:
        assert eval(formula, {}, known) == size, formula
