"""Check the reply to a request of `encode`, and bring it into the form of the inputs.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from polyhead_client.errors import ServerError
from polyhead_client.inputs import Batch
from polyhead_client.padding import Arrays, InputForm
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_client.results import Results
from polyhead_client.tensors import to_array, to_texts
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import restored
from polyhead_proto.names import LENGTHS, TIMINGS, TOKENS
from polyhead_proto.outputs.attention import Weights
from polyhead_proto.outputs.value_norms import norm_weighted
from polyhead_proto.wire import split

Content = bytes | memoryview

_RAW = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_PARAMETERS = pb.ModelInferResponse.PARAMETERS_FIELD_NUMBER
_PARAMETER: Any = GetMessageClass(
    cast(Any, pb.ModelInferResponse.DESCRIPTOR).nested_types_by_name["ParametersEntry"]
)
_MOST_LAYOUTS, _LONGEST_HEADER = 256, 16_384


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """What a reply says of its outputs, which fit the request."""

    model: str
    version: str
    places: Sequence[tuple[SelectedOutput, int, str, tuple[int, ...]]]
    """Of each requested output the index of its content, its datatype and shape."""
    extents: Mapping[str, int]
    """The size of each shape letter, which is the same in all outputs."""


def read_message(data: bytes, batch: Batch, requested: RequestedOutputs) -> Results:
    """Read the bytes of a ModelInferResponse.

    What it says of its outputs is kept: it is the same in the next reply of its kind, but for timings.

    Args:
        data: The reply.
        batch: The inputs of the request.
        requested: The outputs of the request.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    try:
        header, (contents, parameters) = split(data, _RAW, _PARAMETERS)
        key = header, len(contents), batch.size, batch.tokens, batch.memory_tokens
        if (layout := requested.layouts.get(key)) is None:
            message = pb.ModelInferResponse.FromString(header)
            layout = layout_of(message, len(contents), batch, requested)
            if len(requested.layouts) >= _MOST_LAYOUTS:
                requested.layouts.clear()
            if len(header) <= _LONGEST_HEADER:
                requested.layouts[key] = layout
        entries = [_PARAMETER.FromString(each) for each in parameters]
    except DecodeError as error:
        raise ServerError(f"malformed reply: it is no ModelInferResponse: {error}") from error
    return read(layout, {entry.key: entry.value for entry in entries}, contents, batch, requested)


def layout_of(
    message: pb.ModelInferResponse, count: int, batch: Batch, requested: RequestedOutputs
) -> Layout:
    """Check what a reply with so many contents says of its outputs.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    names = [output.name for output in message.outputs]
    if len(names) != count:
        raise ServerError(f"malformed reply: {len(names)} outputs with {count} contents")
    if len(set(names)) != len(names):
        raise ServerError(f"malformed reply: an output comes twice in {names}")
    sizes = {"B": batch.size, "T": batch.tokens, "S": batch.memory_tokens}
    extents = {letter: size for letter, size in sizes.items() if size is not None}
    places = []
    for output in requested.outputs:
        if output.name not in names:
            raise ServerError(f"malformed reply: {output.name} is missing, there are {sorted(names)}")
        index = names.index(output.name)
        datatype, shape = message.outputs[index].datatype, tuple(message.outputs[index].shape)
        if datatype not in output.datatypes:
            raise ServerError(
                f"malformed reply: {output.name} must be {' or '.join(output.datatypes)}, was {datatype}"
            )
        _check_shape(output, shape, extents)
        if output.pruned_from:
            extents.setdefault("H", output.pruned_from)
        places.append((output, index, datatype, shape))
    return Layout(
        model=message.model_name,
        version=message.model_version,
        places=places,
        extents=extents,
    )


def _check_shape(output: SelectedOutput, shape: tuple[int, ...], extents: dict[str, int]) -> None:
    dims = output.dims
    if len(shape) == len(dims):
        expected = [
            extents.setdefault(dim, extent) if isinstance(dim, str) else dim
            for dim, extent in zip(dims, shape, strict=True)
        ]
        if list(shape) == expected:
            return
    spelled = [f"{dim}={extents[dim]}" if dim in extents else str(dim) for dim in dims]
    raise ServerError(f"malformed reply: {output.name} must be [{', '.join(spelled)}], was {list(shape)}")


def read(
    layout: Layout,
    parameters: Mapping[str, pb.InferParameter],
    contents: Sequence[Content],
    batch: Batch,
    requested: RequestedOutputs,
) -> Results:
    """Read the contents of a reply.

    Args:
        layout: What it says of its outputs.
        parameters: Its parameters, among them its timings.
        contents: The raw contents.
        batch: The inputs of the request.
        requested: The outputs of the request.

    Raises:
        ServerError: The contents do not fit the layout.
    """
    arrays: dict[str, NDArray[Any]] = {}
    rows, counts = None, batch.lengths
    for output, index, datatype, shape in layout.places:
        if output.name == TOKENS:
            rows = to_texts(TOKENS, shape, contents[index])
            continue
        array = to_array(output.name, datatype, shape, contents[index])
        if output.name == LENGTHS:
            counts = _checked(array, layout.extents.get("T"))
        else:
            arrays[output.name] = _restored(array, output) if output.declared.fractions else array
    if counts is None:
        raise RuntimeError("lengths must be requested with texts")
    if requested.weighted:
        _weight(arrays, requested)
    unpadder = Unpadder(batch, counts)
    return Results(
        model=layout.model,
        version=layout.version,
        arrays={
            output.name: unpadder.output(arrays[output.name], output)
            for output in requested.outputs
            if output.name in arrays
        },
        tokens=None if rows is None else unpadder.tokens(rows),
        lengths=counts,
        heads=layout.extents.get("H", 0),
        timings={
            name: parameters[name].int64_param
            for name in TIMINGS
            if name in parameters and parameters[name].HasField("int64_param")
        },
    )


def _checked(lengths: NDArray[Any], tokens: int | None) -> NDArray[Any]:
    if lengths.min() < 0 or (tokens is not None and lengths.max() > tokens):
        raise ServerError(f"malformed reply: lengths {lengths.tolist()} for {tokens} tokens")
    return lengths


def _restored(array: NDArray[Any], output: SelectedOutput) -> NDArray[Any]:
    """Return weights or probabilities as FP32, with zeros for heads that were pruned."""
    array = restored(array)
    if not output.pruned_from:
        return array
    batch, _, *rest = array.shape
    whole = np.zeros((batch, output.pruned_from, *rest), array.dtype)
    whole[:, list(output.tensor.heads or ())] = array
    return whole


def _weight(arrays: dict[str, NDArray[Any]], requested: RequestedOutputs) -> None:
    """Make attention norm-weighted; in place, where it has arrays of its own."""
    for output in requested.outputs:
        if not isinstance(output.declared, Weights):
            continue
        norms = requested.with_role(output.declared.norms)[0]
        weights = arrays[output.name]
        of_layer = arrays[norms.name].take(norms.layers.index(output.layers[0]), norms.tensor.layer_axis)
        out = weights if weights.flags.writeable else None
        arrays[output.name] = norm_weighted(weights, of_layer, out=out)


class Unpadder:
    """Brings outputs [B, ...] into the form of the inputs, without the padding that they did not have."""

    def __init__(self, batch: Batch, lengths: NDArray[Any]) -> None:
        self._form = batch.form
        # Keep the caller's padding; remove that of the client or the server.
        self._cuts = lengths if batch.form is InputForm.RAGGED or batch.tokens is None else None
        self._memory_cuts = batch.memory_lengths
        self._cuts_nothing = self._cuts is None and self._memory_cuts is None

    def output(self, array: NDArray[Any], output: SelectedOutput) -> Arrays:
        """Trim an output to the lengths of each sequence, and of its memory."""
        if self._form is InputForm.ARRAY:
            return array
        if self._form is InputForm.SINGLE and self._cuts_nothing:
            return array[0]
        axes, memory_axes = output.token_axes, output.memory_axes
        if self._form is InputForm.RAGGED and not axes + memory_axes:
            return array
        items = list(array)
        for cut_axes, cuts in ((axes, self._cuts), (memory_axes, self._memory_cuts)):
            if cuts is not None and cut_axes:
                slices = [slice(None)] * (array.ndim - 1)
                for index, length in enumerate(cuts):
                    for axis in cut_axes:
                        slices[axis] = slice(length)
                    items[index] = items[index][tuple(slices)]
        return items[0] if self._form is InputForm.SINGLE else items

    def tokens(self, rows: list[list[str]]) -> list[str] | list[list[str]]:
        """Trim the tokens of each sequence to its length."""
        if self._cuts is not None:
            rows = [row[:length] for row, length in zip(rows, self._cuts, strict=True)]
        return rows[0] if self._form is InputForm.SINGLE else rows
