"""The outputs of a request: which, how much of each, how many bytes that is, and what is taken of an array.

All sizes are known before anything is computed. Shape letters: B batch, T tokens, D d_model, H heads.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import DIMENSIONS, DTYPE, HEADS, LAYERS, PRECISION
from polyhead_proto.outputs.vectors import DATATYPES, VectorPrecision, doubt, numbers_of
from polyhead_server.errors import InvalidRequestError, listed, quoted
from polyhead_server.inference.parameters import OutputParameters, Selector, read_output_parameters
from polyhead_server.inference.vectors import Ranges, normalised, quantised, ranges_of
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.signature import Signature, TensorSpec

_DOUBTED: set[str] = set()
"""The models about whose vectors a doubt has been logged."""

_CONVERTING = 16
"""Bytes that are copied in the time in which one byte of another datatype is made."""


@dataclass(frozen=True, kw_only=True)
class RequestedOutput:
    """An output as it was requested."""

    spec: TensorSpec
    datatype: str
    selectors: Mapping[int, Selector]
    """By axis. How far indices may reach is known only when all sizes are."""
    precision: VectorPrecision | None = None


@dataclass(frozen=True, kw_only=True)
class OutputLayout:
    """An output of a reply, every size of which is known."""

    spec: TensorSpec
    datatype: str
    selection: Mapping[int, Sequence[int]]
    """The indices that are selected, by axis."""
    shape: tuple[int, ...]
    bytes: int
    """Of its raw content."""
    computed_bytes: int
    """Of all that the graph gives for it, before anything is selected."""
    normalises: bool = False
    """Whether what is selected are vectors that get length 1 again."""
    precision: VectorPrecision | None = None
    """What these become then."""
    ranges: Ranges | None = field(default=None, compare=False)
    """What that needs."""

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what is wanted of all that the graph gives for it, before it is converted."""
        selected = select(array, self.selection)
        if self.normalises:
            selected = normalised(selected)
        return selected if self.precision is None else quantised(selected, self.precision, self.ranges)

    def work_bytes(self, size: int) -> int:
        """Return what writing so many bytes of it costs, in bytes to copy."""
        return size * (1 if self.datatype == self.spec.datatype else _CONVERTING)


def requested_outputs(
    outputs: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor],
    default: OutputParameters,
    signature: Signature,
) -> list[RequestedOutput]:
    """Read which outputs are requested; if the request names none, all are but those that are `only_named`.

    The request's own parameters are the default of every output that they apply to.

    Raises:
        InvalidRequestError: An output or one of its parameters is wrong, or the default applies to none.
    """
    own: dict[str, OutputParameters] = {}
    for output in outputs:
        if output.name not in signature.outputs:
            raise InvalidRequestError(
                f"output {quoted(output.name)} is not known to {signature.name}, "
                f"which gives {listed(signature.outputs)}{_elsewhere(output.name, signature)}"
            )
        if output.name in own:
            raise InvalidRequestError(f"output {output.name} must be requested once, was requested twice")
        text = signature.outputs[output.name].is_text
        own[output.name] = read_output_parameters(output.parameters, output.name, text=text)
    names = own or [name for name in signature.outputs if not signature.outputs[name].only_named]
    specs = [signature.outputs[name] for name in names]
    for name in _given(default):
        if not any(_applies(name, default.dtype, spec) for spec in specs):
            raise InvalidRequestError(
                f"parameter {name} of the request does not apply to any requested output"
            )
    requested = [_request(spec, own.get(spec.name, OutputParameters()), default) for spec in specs]
    for one in requested:
        for axis, selector in one.selectors.items():
            if selector.name == DIMENSIONS:
                width, trained = one.spec.shape[axis], one.spec.matryoshka
                _warn(doubt(signature.name, selector.ranges[0][1], width, trained), signature.name)
    return requested


def layout_of_output(
    output: RequestedOutput, *, sizes: Mapping[str, int], text_bytes: Mapping[str, int]
) -> OutputLayout:
    """Work out the shape and the bytes of an output; those of texts are given.

    Raises:
        InvalidRequestError: An index is out of range.
    """
    spec = output.spec
    shape = list(spec.at(sizes))
    width = shape[-1]
    computed = math.prod(shape) * spec.dtype.itemsize if spec.computed else 0
    selection: dict[int, Sequence[int]] = {}
    for axis, selector in output.selectors.items():
        numbers = {LAYERS: spec.layers, HEADS: spec.heads}.get(selector.name)
        if numbers is not None:
            selection[axis] = selector.resolve_numbers(numbers)
        else:
            selection[axis] = selector.resolve(shape[axis], spec.axes[axis])
        shape[axis] = len(selection[axis])
    is_cut = shape[-1] < width
    ranges = None
    if output.precision is not None:
        parameter = f"parameter {PRECISION} of output {spec.name}"
        ranges = ranges_of(spec, output.precision, shape[-1], parameter)
        shape[-1] = numbers_of(output.precision, shape[-1])
    size = (
        text_bytes.get(spec.name, 0) if spec.is_text else math.prod(shape) * DTYPES[output.datatype].itemsize
    )
    return OutputLayout(
        spec=spec,
        datatype=output.datatype,
        selection=selection,
        shape=tuple(shape),
        bytes=size,
        computed_bytes=computed,
        normalises=spec.unit is True and is_cut,
        precision=output.precision,
        ranges=ranges,
    )


def select(array: NDArray[Any], selection: Mapping[int, Sequence[int]]) -> NDArray[Any]:
    """Select indices along axes; a view where all of them are consecutive."""
    for axis, indices in selection.items():
        array = array[(slice(None),) * axis + (_index(indices),)]
    return array


def convert(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """Convert an output to its datatype; UINT8 is fractions × 255, rounded, and 0 for NaN."""
    if datatype == "UINT8" and array.dtype != np.uint8:
        scaled = np.rint(array * np.float32(255))
        return np.fmin(np.fmax(scaled, 0), 255).astype(np.uint8)
    if datatype != "FP16":
        return array.astype(DTYPES[datatype], copy=False)
    with np.errstate(over="ignore"):
        return array.astype(np.float16, copy=False)


def _request(spec: TensorSpec, own: OutputParameters, default: OutputParameters) -> RequestedOutput:
    for name in _given(own):
        if not _applies(name, own.dtype, spec):
            extra = f" {own.dtype}" if name == DTYPE else ""
            raise InvalidRequestError(f"parameter {name}{extra} does not apply to output {spec.name}")
    dtype, precision = own.dtype, own.precision
    if dtype is None and precision is None:  # its own one stands for both
        dtype = default.dtype if _applies(DTYPE, default.dtype, spec) else None
        precision = default.precision if _applies(PRECISION, None, spec) else None
    if precision is not None and dtype is not None:
        raise InvalidRequestError(
            f"output {spec.name} must have parameter dtype ({dtype}) or precision ({precision}), had both"
        )
    axes = {name: spec.selected_axis(name) for name in (*default.selectors, *own.selectors)}
    selectors = {**default.selectors, **own.selectors}
    return RequestedOutput(
        spec=spec,
        datatype=dtype or (spec.datatype if precision is None else DATATYPES[precision]),
        selectors={axis: selectors[name] for name, axis in axes.items() if axis is not None},
        precision=precision,
    )


def _warn(why: str | None, model: str) -> None:
    """Log a doubt about vectors of a model, once, however many dimensions callers ask for."""
    if why is not None and model not in _DOUBTED:
        _DOUBTED.add(model)
        LOGGER.warning(why, extra={"model": model})


def _applies(name: str, dtype: str | None, spec: TensorSpec) -> bool:
    """Tell whether a parameter means anything for an output: dtype for floats, UINT8 for fractions."""
    if name == DTYPE:
        return spec.is_fraction if dtype == "UINT8" else spec.datatype in {"FP16", "FP32", "FP64"}
    return spec.selected_axis(name) is not None


def _given(parameters: OutputParameters) -> list[str]:
    """Return the names of the parameters that are given."""
    others = {DTYPE: parameters.dtype, PRECISION: parameters.precision}
    return [*parameters.selectors, *(name for name, value in others.items() if value is not None)]


def _elsewhere(name: str, signature: Signature) -> str:
    """Name the family's other graph that gives an output, for messages."""
    manifest = signature.manifest
    for graph, record in manifest.graphs.items():
        if any(tensor.name == name for tensor in record.outputs):
            return f"; it is an output of {manifest.served_name(graph)}"
    return ""


def _index(indices: Sequence[int]) -> slice | list[int]:
    return slice(indices.start, indices.stop) if isinstance(indices, range) else list(indices)
