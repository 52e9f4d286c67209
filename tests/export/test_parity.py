"""Graphs against PyTorch, on input that the export did not choose."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from polyhead_export import export_family
from polyhead_export.parity import deviation
from polyhead_model import Encoder, EncoderConfig

VARIANTS = {
    "causal, pre-norm": EncoderConfig(
        d_model=24,
        heads=3,
        layers=2,
        feed_forward=40,
        causal=True,
        norm="pre",
        final_norm=True,
        activation="gelu_tanh",
    ),
    "own head width, fused projections, no bias": EncoderConfig(
        d_model=20, heads=3, layers=2, head_width=8, fused=True, bias=False
    ),
    "max-pooled tokens, ReLU": EncoderConfig(
        d_model=16, heads=1, layers=1, feed_forward=16, activation="relu", vocabulary=11, pooling="max"
    ),
    "causal with a mask of the caller's": EncoderConfig(
        d_model=12, heads=4, layers=1, causal=True, mask_input=True
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_graphs_agree_with_pytorch(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]
    torch.manual_seed(11)
    encoder = Encoder(config).eval()
    version = export_family(encoder, "variant", tmp_path).folder
    random = torch.Generator().manual_seed(12)

    for batch, tokens in [(4, 19), (1, 2), (7, 1), (2, 70)]:
        lengths = torch.randint(0, tokens + 1, (batch,), generator=random, dtype=torch.int32)
        if config.vocabulary is None:
            name, x = "x", torch.randn(batch, tokens, config.d_model, generator=random)
        else:
            name, x = "input_ids", torch.randint(config.vocabulary, (batch, tokens), generator=random)
        mask = torch.rand(batch, tokens, tokens, generator=random) < 0.5 if config.mask_input else None
        feed = {name: x.numpy(), "lengths": lengths.numpy()} | (
            {} if mask is None else {"mask": mask.numpy()}
        )
        with torch.inference_mode():
            expected = encoder(x, lengths, mask=mask, need_weights=True)
        for graph in ("model.onnx", "attention.onnx"):
            session = ort.InferenceSession(version / graph, providers=["CPUExecutionProvider"])
            actual = dict(
                zip([out.name for out in session.get_outputs()], session.run(None, feed), strict=True)
            )
            np.testing.assert_allclose(actual.pop("output"), expected.output.numpy(), rtol=1e-5, atol=1e-5)
            if expected.pooled is not None:
                np.testing.assert_allclose(
                    actual.pop("pooled"), expected.pooled.numpy(), rtol=1e-5, atol=1e-5
                )
            for layer, weights in enumerate(expected.attention if graph == "attention.onnx" else ()):
                np.testing.assert_allclose(
                    actual.pop(f"attention.{layer}"), weights.numpy(), rtol=1e-5, atol=1e-5
                )
            assert not actual


def test_large_activations_do_not_see_padding(tmp_path: Path) -> None:
    """Scores of tens of thousands reach the fused operator's usual mask value; ours is out of their reach."""
    torch.manual_seed(5)
    encoder = Encoder(EncoderConfig(d_model=8, heads=1, layers=1)).eval()
    version = export_family(encoder, "loud", tmp_path).folder
    x = 1e3 * torch.randn(1, 9, 8)
    session = ort.InferenceSession(version / "model.onnx", providers=["CPUExecutionProvider"])

    (alone,) = session.run(None, {"x": x[:, :4].numpy(), "lengths": np.array([4], np.int32)})
    (padded,) = session.run(None, {"x": x.numpy(), "lengths": np.array([4], np.int32)})

    np.testing.assert_allclose(padded[:, :4], alone, rtol=1e-5)


@pytest.mark.parametrize(
    ("actual", "expected", "is_"),
    [
        ([0.5], [0.25], 0.25),
        ([200.0], [100.0], 1.0),
        ([], [], 0.0),
        ([float("nan")], [0.0], float("inf")),
        ([float("inf")], [float("inf")], float("inf")),
    ],
)
def test_deviation(actual: list[float], expected: list[float], is_: float) -> None:
    assert deviation(np.array(actual, np.float32), np.array(expected, np.float32)) == is_
