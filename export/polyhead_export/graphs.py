"""Trace a PyTorch encoder into an ONNX graph.

`polyhead_export.kinds` has the kinds of graphs. Attention is one fused operator, which has no weights to
return, or explicit in the layers whose weights a kind needs.
"""

import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from onnxscript import opset20
from torch import Tensor, nn
from torch.export import ExportedProgram

from polyhead_export.constants import norm_maps_of, position_vectors_of
from polyhead_export.forward_pass import run_forward
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import (
    GraphKind,
    axis_sizes,
    compute_outputs,
    inputs_of,
    outputs_of,
)
from polyhead_model import Encoder, EncoderConfig, masks
from polyhead_model.positions import PositionVectors
from polyhead_proto.tensors import TensorSpec

op: Any = opset20

OPSET = 20
"""The exporter's default. From 23 on, it writes ONNX `Attention`, which needs an expanded mask."""

TRACED_SIZE = (3, 7)
"""(B, T) of the example input. Both are above 1, and different: the exporter takes others for constants."""

_ONE_EXPORT = Lock()
"""The exporter changes settings of the whole process while it runs."""


class _TracedEncoder(nn.Module):
    """The encoder with the graph's inputs by name and its outputs as a flat tuple."""

    def __init__(self, encoder: Encoder, kind: GraphKind, *, pack: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.kind = kind
        self.pack = pack
        # Buffers, as constants of the graph: not computed in each run.
        self.norm_maps = _constants(norm_maps_of(encoder, compact=True))
        of_positions = position_vectors_of(encoder)
        self.position_keys = _constants(each.keys for each in of_positions)
        self.position_queries = _constants(each.queries for each in of_positions)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        config = self.encoder.config
        inputs = inputs | {
            spec.name: _at_full_size(inputs[spec.name], spec, inputs, config)
            for spec in inputs_of(config, self.kind)
            if spec.broadcasts
        }
        explicit = self.kind.explicit_layers(config)
        run = run_forward(
            self.encoder,
            inputs,
            explicit=explicit,
            norm_maps=list(self.norm_maps),
            position_vectors=[
                PositionVectors(keys, queries)
                for keys, queries in itertools.zip_longest(self.position_keys, self.position_queries)
            ],
            plain=False,
            masks_by_bias=self.kind.masks_by_bias,
            pack=self.pack,
            pooled_only=self.kind.pooled_only,
            intervenes=self.kind.intervenes,
        )
        return compute_outputs(config, self.kind, inputs, run)


def _constants(tensors: Iterable[Tensor | None]) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in tensors if each is not None)


def build_graph(encoder: Encoder, kind: GraphKind, *, pack: bool = False) -> ir.Model:
    """Trace one graph of the encoder, with dynamic B and T, in the precision of its parameters.

    The graph's weights still refer to the encoder's memory; `polyhead_export.weights` writes them out.

    Args:
        encoder: The encoder.
        kind: The graph's kind.
        pack: Whether layers are computed for the tokens that exist alone (`polyhead_export.signature.packs`).
    """
    with _ONE_EXPORT:
        return _build(encoder, kind, pack=pack)


def _build(encoder: Encoder, kind: GraphKind, *, pack: bool) -> ir.Model:
    config = encoder.config
    inputs = sample_inputs(config, kind, *TRACED_SIZE, seed=0)
    for spec in inputs_of(config, kind):
        if spec.broadcasts:
            # Sizes that no other input has: the graph must not read T or S from what may have size 1.
            batch, queries, keys = inputs[spec.name].shape
            inputs[spec.name] = torch.ones(batch, queries + 2, keys + 4, dtype=torch.bool)
    with _quiet_exporter(), _interruptible(), torch.no_grad():
        traced = torch.export.export(
            _TracedEncoder(encoder, kind, pack=pack).eval(),
            (),
            kwargs={"inputs": inputs},
            dynamic_shapes={"inputs": _dynamic_shapes(config, kind)},
        )
        model = _translate(traced, config, kind).model
    # The exporter writes source paths and stack traces into every node.
    ClearMetadataAndDocStringPass()(model)
    model.producer_name = "polyhead"
    _declare_signature(model, config, kind)
    return model


def _translate(traced: ExportedProgram, config: EncoderConfig, kind: GraphKind) -> torch.onnx.ONNXProgram:
    """Translate a traced graph into ONNX, without decomposing its operators if the exporter knows all.

    To decompose them, it would trace the graph again, which takes as long as all else, and forgets that some
    sizes are the same, so that fewer operators can be fused.
    """
    translate = partial(
        torch.onnx.export,
        traced,
        dynamo=True,
        opset_version=OPSET,
        input_names=[spec.name for spec in inputs_of(config, kind)],
        output_names=[spec.name for spec in outputs_of(config, kind)],
        custom_translation_table=_TRANSLATIONS,
        verbose=False,
    )
    traced.run_decompositions = lambda *_: traced
    try:
        program = translate()
    except torch.onnx.OnnxExporterError:  # another version of torch may record others
        del traced.run_decompositions
        program = translate()
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program


def _at_full_size(mask: Tensor, spec: TensorSpec, inputs: dict[str, Tensor], config: EncoderConfig) -> Tensor:
    """Return a mask that may have size 1 as [B, T, T or S], False in padding."""
    main, lengths, key_lengths = inputs[config.main_input], inputs["lengths"], inputs["lengths"]
    keys = main
    if spec.axes[-1] == "S":
        keys, key_lengths = inputs["memory"], inputs["memory_lengths"]
    valid = masks.valid_tokens(lengths, main.shape[1])[:, :, None]
    visible = valid & masks.valid_tokens(key_lengths, keys.shape[1])[:, None, :]
    # PyTorch's own operator would make the tracer conclude that both sizes are the same.
    full: Tensor = torch.onnx.ops.symbolic("And", (visible, mask), dtype=torch.bool, shape=visible.shape)
    return full


def _dynamic_shapes(config: EncoderConfig, kind: GraphKind) -> dict[str, dict[int, object]]:
    dynamic, sizes = torch.export.Dim.DYNAMIC, axis_sizes(config, [kind])
    return {
        spec.name: {axis: dynamic for axis, letter in enumerate(spec.axes) if letter not in sizes}
        for spec in inputs_of(config, kind)
    }


def _declare_signature(model: ir.Model, config: EncoderConfig, kind: GraphKind) -> None:
    """Name the dynamic axes by their letters instead of the tracer's symbols."""
    sizes = axis_sizes(config, [kind])
    for value, spec in zip(
        (*model.graph.inputs, *model.graph.outputs),
        (*inputs_of(config, kind), *outputs_of(config, kind)),
        strict=True,
    ):
        if value.name != spec.name:
            raise RuntimeError(f"the exporter named {value.name!r} what must be {spec.name!r}")
        letters = spec.axes
        if spec.broadcasts:
            letters = (letters[0], *(f"{letter}_or_1" for letter in letters[1:]))
        value.shape = ir.Shape([sizes.get(letter, letter) for letter in letters])


def _cast(value: Any, dtype: int, *_: object) -> Any:
    return op.Identity(value) if value.dtype == dtype else op.Cast(value, to=dtype)


def _flatten(value: Any, first: int = 0, last: int = -1) -> Any:
    sizes = op.Constant(value_ints=[0] * first + [-1])  # 0 = as it is
    if last in {-1, len(value.shape) - 1}:
        return op.Reshape(value, sizes)
    return op.Reshape(value, op.Concat(sizes, op.Shape(value, start=last + 1), axis=0))


def _move(value: Any, source: int, target: int) -> Any:
    axes = list(range(len(value.shape)))
    axes.insert(target, axes.pop(source))
    return op.Transpose(value, perm=axes)


_TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.__and__.Tensor: op.And,
    torch.ops.aten.detach_.default: op.Identity,
    torch.ops.aten.flatten.using_ints: _flatten,
    torch.ops.aten.item.default: op.Identity,
    torch.ops.aten.movedim.int: _move,
    torch.ops.aten.numpy_T.default: op.Transpose,
    torch.ops.aten.rsub.Scalar: lambda value, other: op.Sub(other, value),
    torch.ops.aten.to.device: lambda value, _device, dtype: _cast(value, dtype),
    torch.ops.aten.to.dtype: _cast,
}
"""What the exporter translates only once it is decomposed, or with more operators."""


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
