"""Attention weights in 16 bits: what is hidden is exactly zero, and rows sum to 1."""

from dataclasses import replace
from functools import cache

import numpy as np
import onnx_ir as ir
import pytest
from tests.encoders import draw_norms_and_biases, seeded
from tests.exports import session_of

from polyhead_export.fusion import fuse, narrow
from polyhead_export.graphs import build_graph
from polyhead_export.half_precision import for_cpu
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.operators import count_operators
from polyhead_export.precision import Precision, in_precision
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import outputs_of
from polyhead_model import EncoderConfig
from polyhead_model.attention_config import Disentangled

KIND = AttentionGraph()
CONFIG = EncoderConfig(d_model=32, heads=4, layers=2, feed_forward=48)
VARIANTS = {
    "lengths": CONFIG,
    "causal": replace(CONFIG, causal=True),
    "a mask of the caller's": replace(CONFIG, mask_input=True),
    "relative positions": replace(CONFIG, relative_buckets=8, relative_distance=6),
    "disentangled": replace(CONFIG, disentangled=Disentangled(terms=("c2p", "p2c"), span=4, distance=9)),
    "to a memory": replace(CONFIG, cross_attention="after_self"),
}
LARGEST_ERROR: dict[Precision, float] = {"fp16": 1e-3, "bf16": 1e-2}
"""Of the sum of a row, as docs/precision.md says."""


@cache
def graph(variant: str, precision: Precision) -> ir.Model:
    encoder = in_precision(seeded(VARIANTS[variant], 51, change=draw_norms_and_biases), precision)
    model = build_graph(encoder, KIND)
    fuse(model)
    outputs = outputs_of(VARIANTS[variant], KIND, precision)
    narrow(model, {spec.name for spec in outputs if spec.datatype == "FP16"})
    return model


@pytest.mark.parametrize("precision", LARGEST_ERROR)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_sum_to_1_and_what_is_hidden_is_zero(variant: str, precision: Precision) -> None:
    config = VARIANTS[variant]
    session = session_of(for_cpu(graph(variant, precision), rounding=True))
    for seed, (batch, tokens) in enumerate([(6, 40), (3, 1), (1, 300)], start=52):
        inputs = {
            name: value.numpy()
            for name, value in sample_inputs(config, KIND, batch, tokens, seed=seed).items()
        }
        names = [each.name for each in session.get_outputs() if "attention." in each.name]
        for name, widened in zip(names, session.run(names, inputs), strict=True):
            weights = widened.astype(np.float16)  # as the graph gives them
            lengths = inputs["memory_lengths" if name.startswith("cross") else "lengths"]
            queries, keys = (
                np.arange(size) < each[:, None]
                for size, each in zip(weights.shape[2:], (inputs["lengths"], lengths), strict=True)
            )
            visible = queries[:, None, :, None] & keys[:, None, None]
            if config.causal:
                visible = visible & np.tri(tokens, dtype=bool)
            if "mask" in inputs and not name.startswith("cross"):
                visible = visible & inputs["mask"][:, None]
            visible = np.broadcast_to(visible, weights.shape)
            assert not weights[~visible].any()
            sums = weights.astype(np.float64).sum(-1)
            np.testing.assert_allclose(sums, visible.any(-1), atol=LARGEST_ERROR[precision])


def test_weights_are_masked_by_one_operator_in_fp16() -> None:
    counted = count_operators(graph("lengths", "fp16"))

    assert (counted["BiasSoftmax"], counted["FusedMatMul"]) == (2, 2)
    assert "Softmax" not in counted


@pytest.mark.parametrize("precision", LARGEST_ERROR)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_leave_the_graph_in_16_bits(variant: str, precision: Precision) -> None:
    outputs = {each.name: each for each in graph(variant, precision).graph.outputs}
    weights = [each for name, each in outputs.items() if "attention." in str(name)]
    by_pair = {
        value.dtype
        for node in graph(variant, precision).graph
        for value in node.outputs
        if value.shape is not None and len(value.shape) == 4
        if value.shape[1] == CONFIG.heads and not isinstance(value.shape[3], int)
    }

    assert len(weights) == (4 if variant == "to a memory" else 2)
    assert {each.dtype for each in weights} == {ir.DataType.FLOAT16}
    assert ir.DataType.FLOAT not in by_pair  # no pass over [B, H, T, T] in 32
    assert outputs["output"].dtype == ir.DataType.FLOAT
