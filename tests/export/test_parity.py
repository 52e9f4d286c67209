"""Graphs against PyTorch, on input that the export did not choose."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from tests.encoders import draw_heads_that_prefer_some_keys, seeded
from tests.exports import run, session_of
from torch import Tensor

from polyhead_export import export_family
from polyhead_export.comparison import check_parity
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.parity import Reference, cosines_of, deviation
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.attention import MultiHeadAttention

VARIANTS = {
    "causal, pre-norm": EncoderConfig(
        d_model=24,
        heads=3,
        layers=2,
        feed_forward=40,
        causal=True,
        head_mask_input=True,
        norm="pre",
        final_norm=True,
        activation="gelu_tanh",
    ),
    "own head width, fused projections, no bias": EncoderConfig(
        d_model=20, heads=3, layers=2, head_width=8, fused=True, bias=False
    ),
    "causal with a mask of the caller's": EncoderConfig(
        d_model=12, heads=4, layers=1, causal=True, mask_input=True, head_mask_input=True
    ),
}


QUICK = next(iter(VARIANTS))


@pytest.mark.parametrize(
    "variant", [QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in VARIANTS if each != QUICK)]
)
def test_graphs_agree_with_pytorch(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]
    encoder = seeded(config, 11)
    version = export_family(encoder, "variant", tmp_path, graphs=["rows"]).folder
    random = torch.Generator().manual_seed(12)

    for batch, tokens in [(4, 19), (1, 2), (7, 1), (2, 70)]:
        lengths = torch.randint(0, tokens + 1, (batch,), generator=random, dtype=torch.int32)
        if config.vocabulary is None:
            name, x = "x", torch.randn(batch, tokens, config.d_model, generator=random)
        else:
            name, x = "input_ids", torch.randint(config.vocabulary, (batch, tokens), generator=random)
        mask = torch.rand(batch, tokens, tokens, generator=random) < 0.5 if config.mask_input else None
        head_mask = torch.rand(batch, config.layers, config.heads, generator=random)
        feed = {name: x.numpy(), "lengths": lengths.numpy()} | (
            {} if mask is None else {"mask": mask.numpy()}
        )
        if config.head_mask_input:
            feed["head_mask"] = head_mask.numpy()
        rows = torch.stack([torch.randperm(tokens, generator=random)[:3] for _ in range(batch)])
        with recorded_values(encoder) as values, torch.inference_mode():
            expected = encoder(
                x,
                lengths,
                mask=mask,
                head_mask=head_mask if config.head_mask_input else None,
                need_weights=True,
            )
        for graph in ("model.onnx", "attention.onnx", "rows.onnx"):
            actual = run(session_of(version / graph), feed | {"rows": rows.numpy()})
            np.testing.assert_allclose(actual.pop("output"), expected.output.numpy(), rtol=1e-5, atol=1e-5)
            if expected.pooled is not None:
                np.testing.assert_allclose(
                    actual.pop("pooled"), expected.pooled.numpy(), rtol=1e-5, atol=1e-5
                )
            for layer, weights in enumerate(expected.attention if graph == "attention.onnx" else ()):
                np.testing.assert_allclose(
                    actual.pop(f"attention.{layer}"), weights.numpy(), rtol=1e-5, atol=1e-5
                )
            if graph == "attention.onnx":
                norms = norms_in_loops(encoder, values, lengths.numpy())
                np.testing.assert_allclose(actual.pop("value_norms"), norms, rtol=1e-5, atol=1e-5)
            elif graph == "rows.onnx":
                whole = torch.stack(expected.attention, dim=1)
                chosen = torch.stack([weights[:, :, row] for weights, row in zip(whole, rows, strict=True)])
                np.testing.assert_allclose(actual.pop("attention_rows"), chosen.numpy(), rtol=1e-5, atol=1e-5)
            assert not actual


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


@pytest.mark.parametrize(
    "kind_of", ["ESM-2", *(pytest.param(each, marks=pytest.mark.slow) for each in ROTARY if each != "ESM-2")]
)
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


@contextmanager
def recorded_values(encoder: Encoder) -> Iterator[list[Tensor]]:
    """The values [B, T, H·K] of each layer in the forward pass of the block."""
    values: list[Tensor] = []

    def project(self: MultiHeadAttention, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = plain(self, *inputs)
        values.append(result[2])
        return result

    plain = MultiHeadAttention._project
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiHeadAttention, "_project", project)
        yield values


def norms_in_loops(encoder: Encoder, values: list[Tensor], lengths: NDArray[np.int32]) -> NDArray[np.float64]:
    """‖v W_O‖ [B, L, H, T], of each head's value with its rows of W_O."""
    heads, width = encoder.config.heads, encoder.config.head_size
    batch, tokens = values[0].shape[:2]
    norms = np.zeros((batch, encoder.config.layers, heads, tokens))
    outputs = [part.w_o.weight for part in encoder.modules() if isinstance(part, MultiHeadAttention)]
    for layer, (value, output) in enumerate(zip(values, outputs, strict=True)):
        w_o = output.detach().numpy().T.astype(np.float64)
        for b, h in np.ndindex(batch, heads):
            own = slice(h * width, (h + 1) * width)
            for t in range(lengths[b]):
                norms[b, layer, h, t] = np.linalg.norm(value[b, t, own].numpy() @ w_o[own])
    return norms


def test_large_activations_do_not_see_padding(tmp_path: Path) -> None:
    """Scores of tens of thousands reach the fused operator's usual mask value; ours is out of their reach."""
    encoder = seeded(EncoderConfig(d_model=8, heads=1, layers=1), 5)
    session = session_of(export_family(encoder, "loud", tmp_path).folder / "model.onnx")
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
