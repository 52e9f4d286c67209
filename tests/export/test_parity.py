"""Graphs against PyTorch, on input that the export did not choose."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.encoders import draw_heads_that_prefer_some_keys, seeded
from tests.exports import run, session_of
from tests.numerics import close

from polyhead_export.comparison import check_parity
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.parity import Reference, reference_outputs
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto.drift import cosines_of, deviation


@pytest.mark.parametrize("masks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_graphs_agree_with_pytorch(masks: bool) -> None:
    """By what users call. tests/test_configurations.py has all that an encoder can be."""
    config = EncoderConfig(
        d_model=24, heads=3, layers=2, feed_forward=40, causal=True, head_mask_input=True, mask_input=masks
    )
    encoder, kind = seeded(config, 11), AttentionGraph()
    session = session_of(build_graph(encoder, kind, pack=True))

    for seed, size in enumerate([(4, 19), (1, 2), (7, 1), (2, 70)]):
        inputs = sample_inputs(config, kind, *size, seed=seed)
        actual = run(session, inputs)
        with torch.inference_mode():
            expected = encoder(**inputs, need_weights=True)
        np.testing.assert_allclose(actual["output"], expected.output.numpy(), rtol=1e-5, atol=1e-5)
        for layer, weights in enumerate(expected.attention):
            np.testing.assert_allclose(actual[f"attention.{layer}"], weights.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", [1, 2, 5])
def test_an_encoder_may_have_fewer_positions_than_are_traced(positions: int) -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1, vocabulary=7, positions=positions)
    encoder, kind = seeded(config, 11), FastGraph()
    session = session_of(build_graph(encoder, kind))

    for tokens in {1, positions}:
        inputs = sample_inputs(config, kind, 3, tokens, seed=tokens)
        close(run(session, inputs)["output"], reference_outputs(encoder, kind, inputs)["output"])


ROTARY = {
    "ESM-2": {"rotary_base": 10_000.0, "token_dropout_id": 3, "norm": "pre", "final_norm": True},
    "ModernBERT": {
        "rotary_base": 160_000.0,
        "local_rotary_base": 10_000.0,
        "local_window": 32,
        "global_every": 2,
        "gated": True,
    },
    # Longer sequences than in training: frequencies of a checkpoint's own, with more digits than fp32.
    "scaled frequencies": {
        "rotary_base": 10_000.0,
        "rotary_frequencies": tuple(1.3 ** (-place) / 3 for place in range(32)),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind_of", ROTARY)
def test_float64_has_the_frequencies_of_the_encoder(kind_of: str, tmp_path: Path) -> None:
    """Angles grow with positions, and so would the difference of frequencies with more digits."""
    encoder = of_trained_scale(
        EncoderConfig(
            d_model=128, heads=2, layers=2, feed_forward=64, vocabulary=32, **cast(Any, ROTARY[kind_of])
        )
    )
    kind, file = AttentionGraph(), tmp_path / "attention.onnx"
    model = build_graph(encoder, kind, pack=True)
    ir.save(model, file)

    compared = Reference(encoder).compare(file, kind, model)

    check_parity(compared, kind.file)
    weights = [each for name, each in compared.items() if name.startswith("attention")]
    assert all(each.wiring is not None and each.wiring.largest < 1e-12 for each in weights)
    assert all(each.pytorch.largest > 1e-6 for each in weights)


def of_trained_scale(config: EncoderConfig) -> Encoder:
    """An encoder whose heads prefer some keys, as those of trained ones do."""
    return seeded(config, 61, change=draw_heads_that_prefer_some_keys)


def test_large_activations_do_not_see_padding() -> None:
    """Scores of tens of thousands reach the fused operator's usual mask value; ours is out of their reach."""
    encoder = seeded(EncoderConfig(d_model=8, heads=1, layers=1), 5)
    session = session_of(build_graph(encoder, FastGraph(), pack=True))
    x = 1e3 * torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(5))

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


def test_cosines_of_equal_vectors_are_1_though_they_are_zero() -> None:
    ours = np.array([[0, 0], [0, 0], [3, 4], [1e-30, 0]], np.float32)
    theirs = np.array([[0, 0], [1, 0], [4, 3], [2e-30, 0]], np.float32)

    np.testing.assert_allclose(cosines_of(ours, theirs), [1, 0, 0.96, 1])
