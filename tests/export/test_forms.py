"""The form that attention takes in graphs, with fused operators, blocks and biases, computes what is defined.

Without tracing: onnxruntime's operator is computed in PyTorch. So many encoders can be tried.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoders import draw_all, seeded
from tests.model.test_properties import VOCABULARY, configs
from torch import Tensor

from polyhead_export.arithmetic import Widened
from polyhead_export.comparison import errors_of
from polyhead_export.constants import norm_maps_of
from polyhead_export.forward_pass import ForwardPass, run_forward
from polyhead_export.kinds import kinds_of
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, compute_outputs, outputs_of, packs
from polyhead_model import Encoder, EncoderConfig, TokenVectors

Outputs = dict[str, np.ndarray[Any, Any]]


def operator(_: str, inputs: Sequence[Any], attributes: Mapping[str, Any], **__: Any) -> Tensor:
    """onnxruntime's `MultiHeadAttention`."""
    given: list[Any] = [*inputs, *[None] * (6 - len(inputs))]
    q, k, v, _nothing, lengths, bias = given
    heads, hidden = attributes["num_heads"], attributes["mask_filter_value"]
    q, k, v = (
        each if each.ndim == 4 else each.unflatten(2, (heads, -1)).transpose(1, 2) for each in (q, k, v)
    )
    scores = q @ k.transpose(2, 3) * attributes.get("scale", q.shape[-1] ** -0.5)
    keys = torch.arange(k.shape[2])
    if bias is not None:
        scores = scores + bias
    if lengths is not None:
        scores = scores + torch.where(keys < lengths[:, None, None, None], 0.0, hidden)
    if attributes["unidirectional"]:
        scores = scores + torch.where(keys <= torch.arange(q.shape[2])[:, None], 0.0, hidden)
    context: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return context


@pytest.fixture(autouse=True, scope="module")
def without_onnx() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx.ops, "symbolic", operator)
        yield


def outputs(encoder: Encoder, kind: GraphKind, inputs: dict[str, Tensor], run: ForwardPass) -> Outputs:
    specs = outputs_of(encoder.config, kind)
    values = compute_outputs(encoder.config, kind, inputs, run)
    return {spec.name: value.numpy() for spec, value in zip(specs, values, strict=True)}


def furthest(encoder: Encoder, kind: GraphKind, inputs: dict[str, Tensor]) -> dict[str, float]:
    """How far each output in the form of a graph is from its definition, in float64."""
    config, intervenes = encoder.config, kind.intervenes
    with torch.inference_mode(), Widened(torch.float64):
        maps = norm_maps_of(encoder, compact=False)
        plain = run_forward(
            encoder, inputs, explicit=range(config.layers), norm_maps=maps, intervenes=intervenes
        )
        expected = outputs(encoder, kind, inputs, plain)
        run = run_forward(
            encoder,
            inputs,
            explicit=kind.explicit_layers(config),
            norm_maps=norm_maps_of(encoder, compact=True),
            plain=False,
            masks_by_bias=kind.masks_by_bias,
            pack=packs(config, "fp32"),
            pooled_only=kind.pooled_only,
            intervenes=intervenes,
        )
        actual = outputs(encoder, kind, inputs, run)
    ours, theirs = kind.align(config, actual, expected, plain)
    return {name: float(errors_of(ours[name], theirs[name]).max(initial=0)) for name in ours}


@st.composite
def encoders(draw: st.DrawFn) -> Encoder:
    config: EncoderConfig = draw(configs())
    changes: dict[str, Any] = {"mask_input": draw(st.sampled_from([False, False, True]))}
    if config.cross_attention != "after_self":
        changes["head_mask_input"] = draw(st.booleans())
    if config.vocabulary is not None:
        fill = draw(st.integers(0, VOCABULARY - 1)) if not config.causal else None
        changes["token_vectors"] = TokenVectors(skipped_ids=(2,), expansion_id=fill)
    return seeded(replace(config, **changes), change=draw_all)


@settings(max_examples=30)
@given(encoders(), st.integers(1, 12), st.integers(0, 99))
def test_graphs_compute_what_is_defined(encoder: Encoder, tokens: int, seed: int) -> None:
    for kind in kinds_of(encoder.config, ["all"]):
        inputs = sample_inputs(encoder.config, kind, 3, tokens, seed=seed)

        assert max(furthest(encoder, kind, inputs).values()) < 1e-6


@pytest.mark.parametrize("fields", [{}, {"feed_forward": 8}], ids=["attention alone", "blocks"])
@pytest.mark.parametrize("window", [2, None])
def test_tokens_that_fill_up_a_query_are_no_keys(fields: dict[str, Any], window: int | None) -> None:
    """With a window, most of them see nothing."""
    config = EncoderConfig(
        d_model=4,
        heads=1,
        layers=2,
        vocabulary=7,
        local_window=window,
        token_vectors=TokenVectors(expansion_id=1),
        **fields,
    )
    encoder = seeded(config, 3, change=draw_all)
    ids = torch.tensor([[3, 4, 1, 1, 1, 1, 1, 1], [5, 1, 1, 2, 1, 1, 1, 1]])
    lengths = torch.tensor([8, 7], dtype=torch.int32)
    for kind in kinds_of(config, ["all"]):
        inputs = sample_inputs(config, kind, *ids.shape, seed=1) | {"input_ids": ids, "lengths": lengths}

        assert max(furthest(encoder, kind, inputs).values()) < 1e-6
