"""The outputs of a request: which, how much of each, how many bytes that is, and what is taken of an array.

All sizes are known before anything is computed. Shape letters: B batch, T tokens, D d_model, H heads.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import DTYPE, HEADS, LAYERS, PRECISION
from polyhead_proto.outputs import declared
from polyhead_proto.outputs.pooled import (
    DATATYPES,
    Ranges,
    VectorPrecision,
    normalised,
    numbers_of,
    quantised,
)
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import InvalidRequestError, listed, quoted
from polyhead_server.inference.parameters import OutputParameters, Selector, read_output_parameters
from polyhead_server.repository.signature import Signature

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
    ranges: Mapping[int, Ranges] = field(default_factory=dict)
    """Of vectors, by number of dimensions: what quantising them needs."""

    def layout(self, sizes: Mapping[str, int]) -> "OutputLayout":
        """Work out the shape and the bytes of an output, given the sizes of axes; texts count as empty.

        Raises:
            InvalidRequestError: An index is out of range.
        """
        spec = self.spec
        shape = list(spec.at(sizes))
        width = shape[-1]
        computed = 0 if declared(spec).made else math.prod(shape) * spec.dtype.itemsize
        selection: dict[int, Sequence[int]] = {}
        for axis, selector in self.selectors.items():
            numbers = {LAYERS: spec.layers, HEADS: spec.heads}.get(selector.name)
            if numbers is not None:
                selection[axis] = selector.resolve_numbers(numbers)
            else:
                selection[axis] = selector.resolve(shape[axis], spec.axes[axis])
            shape[axis] = len(selection[axis])
        is_cut = shape[-1] < width
        ranges = None
        if self.precision is not None:
            parameter = f"parameter {PRECISION} of output {spec.name}"
            ranges = ranges_of(self.ranges, self.precision, shape[-1], parameter)
            shape[-1] = numbers_of(self.precision, shape[-1])
        size = 0 if spec.is_text else math.prod(shape) * DTYPES[self.datatype].itemsize
        return OutputLayout(
            spec=spec,
            datatype=self.datatype,
            selection=selection,
            shape=tuple(shape),
            bytes=size,
            computed_bytes=computed,
            normalises=spec.unit is True and is_cut,
            precision=self.precision,
            ranges=ranges,
        )


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

    @cached_property
    def is_whole(self) -> bool:
        """Whether all of it is wanted, as it is: there is nothing to `take`."""
        return not (self.selection or self.normalises or self.precision)

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what is wanted of all that the graph gives for it, before it is converted."""
        selected = select(array, self.selection) if self.selection else array
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
    names = own or [name for name, spec in signature.outputs.items() if not declared(spec).only_named]
    specs = [signature.outputs[name] for name in names]
    for name in _given(default):
        if not any(declared(spec).takes(spec, name, default.dtype) for spec in specs):
            raise InvalidRequestError(
                f"parameter {name} of the request does not apply to any requested output"
            )
    ranges = signature.manifest.ranges_of_vectors
    return [_request(spec, own.get(spec.name, OutputParameters()), default, ranges) for spec in specs]


def select(array: NDArray[Any], selection: Mapping[int, Sequence[int]]) -> NDArray[Any]:
    """Select indices along axes; a view where all of them are consecutive."""
    for axis, indices in selection.items():
        array = array[(slice(None),) * axis + (_index(indices),)]
    return array


def ranges_of(
    measured: Mapping[int, Ranges], precision: VectorPrecision, dimensions: int, field: str
) -> Ranges | None:
    """Return the ranges by which vectors get a precision; None if it needs none.

    Args:
        measured: The ranges of a family, by number of dimensions.
        precision: What they get.
        dimensions: How many numbers they have by then.
        field: What asks for it, for messages.

    Raises:
        InvalidRequestError: The export did not measure them.
    """
    if precision in {"binary", "ubinary"}:
        return None
    if (ranges := measured.get(dimensions)) is None:
        known = f"of {listed(measured)} alone" if measured else "of none (polyhead export --sentences)"
        raise InvalidRequestError(
            f"{field} must be binary or ubinary, was {precision}, which needs the ranges of vectors of "
            f"{dimensions} dimensions: the export measured those {known}"
        )
    return ranges


def _request(
    spec: TensorSpec, own: OutputParameters, default: OutputParameters, ranges: Mapping[int, Ranges]
) -> RequestedOutput:
    output = declared(spec)
    for name in _given(own):
        if not output.takes(spec, name, own.dtype):
            extra = f" {own.dtype}" if name == DTYPE else ""
            raise InvalidRequestError(f"parameter {name}{extra} does not apply to output {spec.name}")
    dtype, precision = own.dtype, own.precision
    if dtype is None and precision is None:  # its own one stands for both
        dtype = default.dtype if output.takes(spec, DTYPE, default.dtype) else None
        precision = default.precision if output.takes(spec, PRECISION) else None
    if precision is not None and dtype is not None:
        raise InvalidRequestError(
            f"output {spec.name} must have parameter dtype ({dtype}) or precision ({precision}), had both"
        )
    axes = {name: output.axis(spec, name) for name in (*default.selectors, *own.selectors)}
    selectors = {**default.selectors, **own.selectors}
    return RequestedOutput(
        spec=spec,
        datatype=dtype or (spec.datatype if precision is None else DATATYPES[precision]),
        selectors={axis: selectors[name] for name, axis in axes.items() if axis is not None},
        precision=precision,
        ranges=ranges if output.vectors else {},
    )


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
