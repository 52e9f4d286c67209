"""Trace a PyTorch encoder into an ONNX graph.

A family has one graph of each `GraphKind`. The fast graph computes attention in one fused operator, which has
no weights to return. The attention graph computes it explicitly, so that every layer's weights are outputs.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn

from polyhead_export.attention_ops import explicit_attention, fused_attention
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, axis_sizes, inputs_of, outputs_of
from polyhead_model import Encoder, EncoderConfig

OPSET = 20
"""The exporter's default. From 23 on, it writes ONNX `Attention`, which needs an expanded mask."""

TRACED_SIZE = (3, 7)
"""(B, T) of the example input. Both are above 1, and different: the exporter takes others for constants."""


class _TracedEncoder(nn.Module):
    """The encoder with the graph's inputs as keyword arguments and its outputs as a flat tuple."""

    def __init__(self, encoder: Encoder, kind: GraphKind) -> None:
        super().__init__()
        self.encoder = encoder
        self.kind = kind

    def forward(
        self,
        *,
        lengths: Tensor,
        x: Tensor | None = None,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        config = self.encoder.config
        dtype = next(self.encoder.parameters()).dtype
        # The fused operator takes lengths, which cannot express an arbitrary mask.
        fused = not self.kind.weights and mask is None
        vectors = x if x is None or dtype == x.dtype else x.to(dtype)
        result = self.encoder(
            vectors if input_ids is None else input_ids,
            lengths,
            mask=mask,
            token_type_ids=token_type_ids,
            need_weights=self.kind.weights,
            attend=fused_attention(lengths, causal=config.causal) if fused else explicit_attention(dtype),
        )
        output, pooled = result.output, result.pooled
        if dtype != torch.float32:
            # Pool in fp32: it sums rounded values, and costs little.
            output = output.float()
            pooled = self.encoder.pool(output, lengths)
        return (output, *(() if pooled is None else (pooled,)), *(result.attention or ()))


def build_graph(encoder: Encoder, kind: GraphKind) -> ir.Model:
    """Trace one graph of the encoder, with dynamic B and T, in the precision of its parameters.

    The graph's weights still refer to the encoder's memory; `polyhead_export.weights` writes them out.
    """
    config = encoder.config
    inputs = sample_inputs(config, *TRACED_SIZE, seed=0)
    with _quiet_exporter(), _interruptible(), torch.no_grad():
        program = torch.onnx.export(
            _TracedEncoder(encoder, kind).eval(),
            kwargs=inputs,
            dynamo=True,
            opset_version=OPSET,
            input_names=[spec.name for spec in inputs_of(config)],
            output_names=[spec.name for spec in outputs_of(config, kind)],
            dynamic_shapes=_dynamic_shapes(config),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    model = program.model
    # The exporter writes source paths and stack traces into every node.
    ClearMetadataAndDocStringPass()(model)
    model.producer_name = "polyhead"
    _declare_signature(model, config, kind)
    return model


def _dynamic_shapes(config: EncoderConfig) -> dict[str, dict[int, object]]:
    dynamic, sizes = torch.export.Dim.DYNAMIC, axis_sizes(config)
    return {
        spec.name: {axis: dynamic for axis, letter in enumerate(spec.axes) if letter not in sizes}
        for spec in inputs_of(config)
    }


def _declare_signature(model: ir.Model, config: EncoderConfig, kind: GraphKind) -> None:
    """Name the dynamic axes by their letters instead of the tracer's symbols."""
    sizes = axis_sizes(config)
    for value, spec in zip(
        (*model.graph.inputs, *model.graph.outputs),
        (*inputs_of(config), *outputs_of(config, kind)),
        strict=True,
    ):
        if value.name != spec.name:
            raise RuntimeError(f"the exporter named {value.name!r} what must be {spec.name!r}")
        value.shape = ir.Shape([sizes.get(letter, letter) for letter in spec.axes])


@contextmanager
def _interruptible() -> Iterator[None]:
    """Re-raise KeyboardInterrupt, which the exporter wraps in an error of its own."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's warnings about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
