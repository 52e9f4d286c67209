"""Fused graphs compute what the encoder does, and are made of the operators that they should be."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.encoders import BERT, draw_norms_and_biases, seeded
from tests.exports import session_of

from polyhead_export import ExportError, IncompleteExportError, Precision, export_family
from polyhead_export.evaluation import evaluate
from polyhead_export.fusion import fuse
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.kinds.rows import RowsGraph
from polyhead_export.kinds.stream import StreamGraph
from polyhead_export.operators import check_operators, count_operators, required_operators
from polyhead_export.parity import reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, outputs_of
from polyhead_model import Encoder, EncoderConfig

VARIANTS = {
    "post-norm": EncoderConfig(d_model=16, heads=4, layers=2, feed_forward=24),
    "causal, pre-norm": EncoderConfig(
        d_model=24,
        heads=3,
        layers=3,
        feed_forward=40,
        causal=True,
        norm="pre",
        final_norm=True,
        activation="gelu_tanh",
        layer_norm_epsilon=1e-3,  # large enough to show
    ),
    "own head width, no bias": EncoderConfig(
        d_model=20, heads=3, layers=2, head_width=8, feed_forward=12, bias=False
    ),
    "attention only, fused before": EncoderConfig(d_model=12, heads=2, layers=3, fused=True),
    "max-pooled tokens, ReLU": replace(
        BERT, heads=1, layers=1, activation="relu", positions=None, pooling="max"
    ),
    "a mask of the caller's": EncoderConfig(d_model=12, heads=4, layers=2, feed_forward=16, mask_input=True),
}


def build(variant: str) -> Encoder:
    return seeded(VARIANTS[variant], 21, change=draw_norms_and_biases)


@cache
def fused(variant: str, kind: GraphKind) -> ir.Model:
    model = build_graph(build(variant).fuse(), kind)
    fuse(model)
    return model


@pytest.mark.parametrize(
    ("variant", "kind", "operators"),
    [
        ("post-norm", FastGraph(), {"Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2, "MatMul": 8}),
        pytest.param(
            "post-norm",
            AttentionGraph(),
            {"Softmax": 2, "SkipLayerNormalization": 4, "BiasGelu": 2, "Attention": 0},
            marks=pytest.mark.slow,
        ),
        # The first norm has no residual before it.
        (
            "causal, pre-norm",
            FastGraph(),
            {"Attention": 3, "SkipLayerNormalization": 6, "LayerNormalization": 1, "FastGelu": 3},
        ),
        # What flows is edited before each layer, and after the last.
        (
            "causal, pre-norm",
            StreamGraph(),
            {"Attention": 3, "SkipLayerNormalization": 3, "LayerNormalization": 4, "FastGelu": 3},
        ),
        ("own head width, no bias", RowsGraph(), {"Attention": 2, "Softmax": 2}),
        pytest.param(
            "a mask of the caller's",
            RowsGraph(),
            {"Softmax": 2, "Attention": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "causal, pre-norm",
            RowsGraph(attention_layers=(1,)),
            {"Softmax": 1, "Attention": 3},
            marks=pytest.mark.slow,
        ),
        ("causal, pre-norm", AttentionGraph(attention_layers=(0, 2)), {"Softmax": 2, "Attention": 1}),
        ("own head width, no bias", FastGraph(), {"Attention": 2, "SkipLayerNormalization": 4, "Gelu": 2}),
        ("attention only, fused before", FastGraph(), {"Attention": 3, "Split": 3}),
        # The embeddings are normalised, too.
        ("max-pooled tokens, ReLU", FastGraph(), {"Attention": 1, "SkipLayerNormalization": 3}),
        ("a mask of the caller's", FastGraph(), {"Attention": 2, "Softmax": 0}),
    ],
)
def test_fused_graphs_agree_with_pytorch(variant: str, kind: GraphKind, operators: dict[str, int]) -> None:
    encoder, config = build(variant), VARIANTS[variant]
    counted = count_operators(fused(variant, kind))
    session = session_of(fused(variant, kind))
    names = [spec.name for spec in outputs_of(config, kind)]

    assert {operator: counted.get(operator, 0) for operator in operators} == operators
    assert "MultiHeadAttention" not in counted  # which would be computed unfused
    check_operators(counted, required_operators(config, kind, "bf16"), kind.file)
    for seed, (batch, tokens) in enumerate([(4, 19), (1, 2), (7, 1)], start=22):
        inputs = sample_inputs(config, kind, batch, tokens, seed=seed)
        expected = reference_outputs(encoder, kind, inputs)
        feeds = {name: value.numpy() for name, value in inputs.items()}
        exact = evaluate(fused(variant, kind), names, feeds)
        for name, actual, wide in zip(names, session.run(names, feeds), exact, strict=True):
            np.testing.assert_allclose(actual, expected[name], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(wide, expected[name], rtol=1e-5, atol=1e-5)


def test_a_lost_fusion_fails_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_export.version.fuse", lambda _: None)

    with pytest.raises(ExportError, match=r"model\.onnx must have 2 Attention, has 0: torch or onnxscript"):
        export_family(build("post-norm"), "lost", tmp_path, precision="fp16")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("precision", "check", "message"),
    [
        ("fp32", "check_operators", "rows.onnx must have more"),
        pytest.param("int8", "check_products", "rows.onnx must have more", marks=pytest.mark.slow),
    ],
)
def test_a_graph_with_a_lost_fusion_is_left_out(
    precision: Precision, check: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses(*arguments: Any) -> None:
        if arguments[-1] == "rows.onnx":
            raise ExportError(message)

    monkeypatch.setattr(f"polyhead_export.version.{check}", loses)

    with pytest.raises(IncompleteExportError, match=message):
        export_family(
            build("attention only, fused before"), "lost", tmp_path, precision=precision, graphs=["rows"]
        )

    assert {path.name for path in (tmp_path / "lost" / "1").glob("*.onnx")} == {
        "model.onnx",
        "attention.onnx",
    }


def test_a_fast_graph_in_fp32_must_be_fused_too() -> None:
    required = required_operators(VARIANTS["post-norm"], FastGraph(), "fp32")

    check_operators({"MultiHeadAttention": 2, "MatMul": 9}, required, "model.onnx")
    with pytest.raises(ExportError, match="must have 2 MultiHeadAttention, has 1"):
        check_operators({"MultiHeadAttention": 1, "Softmax": 1}, required, "model.onnx")
