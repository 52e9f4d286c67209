"""A graph that is evaluated in float64 gives what the encoder gives in float64, to its last digits."""

import numpy as np
import pytest
import torch

from polyhead_export.evaluation import evaluate
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


@pytest.mark.parametrize("kind", [FastGraph(), AttentionGraph()], ids=lambda kind: kind.name)
@pytest.mark.parametrize("config", CONFIGS)
def test_a_graph_in_float64(config: str, kind: GraphKind) -> None:
    """The width of heads is 16: the root that scores are divided by is exact in fp32."""
    torch.manual_seed(17)
    encoder = Encoder(CONFIGS[config]).eval()
    lengths = torch.tensor([9, 4, 1], dtype=torch.int32)
    if encoder.config.vocabulary is None:
        x = torch.randn(3, 9, 32)
    else:
        x = torch.randint(encoder.config.vocabulary, (3, 9))
    model = build_graph(encoder, kind)

    (actual,) = evaluate(
        model, ["output"], {encoder.config.main_input: x.numpy(), "lengths": lengths.numpy()}
    )

    with torch.inference_mode():
        expected = encoder.double()(x.double() if x.is_floating_point() else x, lengths).output
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=1e-13)
