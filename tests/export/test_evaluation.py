"""A graph that is evaluated in float64 gives what the encoder gives in float64, to its last digits."""

import numpy as np
import onnx_ir as ir
import pytest
import torch

from polyhead_export.evaluation import evaluate
from polyhead_export.fusion import fuse
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.signature import GraphKind
from polyhead_model import Encoder, EncoderConfig

CONFIGS = {
    "lengths": EncoderConfig(d_model=32, heads=2, layers=2, feed_forward=48),
    "causal": EncoderConfig(d_model=32, heads=2, layers=1, causal=True, activation="gelu_tanh"),
    "a window": EncoderConfig(d_model=32, heads=2, layers=1, local_window=2, vocabulary=20),
}
FUSED = {
    "post-norm": (CONFIGS["lengths"], {"Attention", "SkipLayerNormalization", "BiasGelu"}),
    "pre-norm": (
        EncoderConfig(
            d_model=32,
            heads=2,
            layers=2,
            feed_forward=48,
            causal=True,
            norm="pre",
            final_norm=True,
            activation="gelu_tanh",
        ),
        {"Attention", "SkipLayerNormalization", "FastGelu"},
    ),
    "no bias": (
        EncoderConfig(d_model=32, heads=2, layers=2, feed_forward=48, bias=False),
        {"Attention", "SkipLayerNormalization"},
    ),
}


@pytest.mark.parametrize("kind", [FastGraph(), AttentionGraph()], ids=lambda kind: kind.name)
@pytest.mark.parametrize("config", CONFIGS)
def test_a_graph_in_float64(config: str, kind: GraphKind) -> None:
    """The width of heads is 16: the root that scores are divided by is exact in fp32."""
    encoder = build(CONFIGS[config])

    check(encoder, build_graph(encoder, kind))


@pytest.mark.parametrize("variant", FUSED)
def test_a_fused_graph_in_float64(variant: str) -> None:
    config, operators = FUSED[variant]
    encoder = build(config)
    model = build_graph(encoder.fuse(), FastGraph())
    fuse(model)

    assert operators <= {node.op_type for node in model.graph}
    check(encoder, model)


def build(config: EncoderConfig) -> Encoder:
    torch.manual_seed(17)
    encoder = Encoder(config).eval()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias") or "norm" in name:  # PyTorch draws zeros and ones for some
                parameter.normal_(0.5, 0.2)
    return encoder


def check(encoder: Encoder, model: ir.Model) -> None:
    """Check that a graph of an encoder computes what the encoder does."""
    lengths = torch.tensor([9, 4, 1], dtype=torch.int32)
    if encoder.config.vocabulary is None:
        x = torch.randn(3, 9, 32)
    else:
        x = torch.randint(encoder.config.vocabulary, (3, 9))

    (actual,) = evaluate(
        model, ["output"], {encoder.config.main_input: x.numpy(), "lengths": lengths.numpy()}
    )

    with torch.inference_mode():
        expected = encoder.double()(x.double() if x.is_floating_point() else x, lengths).output
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=1e-13)
