"""Check the reply to a request of `encode`, and bring it into the form of the inputs.

Shape letters: B batch, T tokens, D d_model, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from polyhead_client.batch import Arrays, Batch, InputForm, Rows, TensorField
from polyhead_client.encoding import OF_SEVERAL_OUTPUTS, Encoding, Timings
from polyhead_client.errors import ServerError
from polyhead_client.layers import FetchedLayers
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_client.visibility import Visibility
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import restored, to_array, unpack_strings
from polyhead_proto.names import ATTENTION, LENGTHS, MASK, TIMINGS, TOKENS
from polyhead_proto.outputs.attention import Weights
from polyhead_proto.outputs.head_scores import HEAD_SCORES, WEIGHTED_SCORES, HeadScores
from polyhead_proto.outputs.value_norms import norm_weighted
from polyhead_proto.wire import read_reply

_NAME_OF = attrgetter("name")

_MOST_COPIED = 1 << 16
"""The bytes of a reply up to which protobuf, which copies contents, reads it faster than our walk."""


_NONE: Mapping[str, Any] = MappingProxyType({"output": None, "pooled": None})
"""The fields of `Encoding` without a default."""


@dataclass(kw_only=True, eq=False)
class Results:
    """The outputs of a request, or of several that were joined."""

    model: str
    version: str
    arrays: Mapping[str, Arrays]
    """All outputs but tokens and lengths."""
    tokens: list[str] | list[list[str]] | None
    lengths: NDArray[Any]
    """[B]."""
    heads: int
    """H; 0 where no output has such an axis, or `heads` selects from it."""
    timings: Mapping[str, int]
    """The server's, as `Timings` names them."""

    def encoding(self, requested: RequestedOutputs, batch: Batch, total_ns: int) -> Encoding:
        """Return them as the result of `encode`.

        Args:
            requested: The outputs of the request.
            batch: Its inputs.
            total_ns: The duration of the call.
        """
        single = batch.form is InputForm.SINGLE
        heads = requested.heads or tuple(range(self.heads)) or None
        found: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for role, outputs in requested.by_role.items():
            declared, array = outputs[0].declared, self.arrays.get(outputs[0].name)
            if declared.by_layer:
                layers = self._by_layer(outputs, declared.field, single)
                found[declared.field] = layers
                if declared.field == ATTENTION and not outputs[0].memory_axes:
                    mask = _mask_of(batch)
                    visibility = requested.visibility or (None if mask is None else Visibility())
                    if visibility is not None:
                        found["visible"] = visibility.of_layers(layers, requested.queries, mask)
            elif role in {HEAD_SCORES.role, WEIGHTED_SCORES.role}:
                parts.setdefault(declared.field, {})[declared.part] = self._scores(outputs[0], heads or ())
            elif declared.part:
                parts.setdefault(declared.field, {})[declared.part] = array
            elif declared.field:
                found[declared.field] = array
        if scores := parts.pop(HEAD_SCORES.field, None):
            found[HEAD_SCORES.field] = replace(scores["values"], weighted=scores["weighted"])
        for field, values in parts.items():
            found[field] = OF_SEVERAL_OUTPUTS[field](**values)
        return Encoding(
            model=self.model,
            version=self.version,
            labels=requested.labels,
            heads=heads,
            queries=requested.queries,
            tokens=self.tokens,
            lengths=int(self.lengths[0]) if single else self.lengths,
            timings=Timings(total_ns=total_ns, **self.timings),
            kept_heads=requested.kept_heads,
            weighted=requested.weighted,
            **{**_NONE, **found},
        )

    def _by_layer(self, outputs: Sequence[SelectedOutput], field: str, single: bool) -> FetchedLayers:
        arrays = {
            layer: _of_layer(self.arrays[output.name], output.tensor.layer_axis, index, single)
            for output in outputs
            for index, layer in enumerate(output.layers)
        }
        return FetchedLayers(arrays, field)

    def _scores(self, output: SelectedOutput, heads: tuple[int, ...]) -> HeadScores:
        return HeadScores(
            values=self.arrays[output.name],
            names=output.tensor.labels or (),
            layers=tuple(output.layers),
            heads=heads,
        )


def _mask_of(batch: Batch) -> Rows | None:
    """Return the mask that goes with the inputs."""
    fields = (each for each in batch.fields if isinstance(each, TensorField))
    return next((each.rows for each in fields if each.name == MASK), None)


def read_message(data: bytes, batch: Batch, requested: RequestedOutputs) -> Results:
    """Read the bytes of a ModelInferResponse; see `read`.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    try:
        if len(data) <= _MOST_COPIED:
            message = pb.ModelInferResponse.FromString(data)
            return read(message, message.raw_output_contents, batch, requested)
        message, contents, _ = read_reply(data, pb.ModelInferResponse)
    except DecodeError as error:
        raise ServerError(f"malformed reply: it is no ModelInferResponse: {error}") from error
    return read(message, contents, batch, requested)


def read(
    message: pb.ModelInferResponse,
    contents: Sequence[bytes | memoryview],
    batch: Batch,
    requested: RequestedOutputs,
) -> Results:
    """Read a reply.

    Args:
        message: The reply; its contents are not read.
        contents: The raw contents of its outputs.
        batch: The inputs of the request.
        requested: The outputs of the request.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    arrays: dict[str, NDArray[Any]] = {}
    rows, lengths = None, batch.lengths
    places, extents = _places(message, len(contents), batch, requested)
    for output, index, datatype, shape in places:
        name = output.name
        try:
            if name == TOKENS:
                rows = _rows_of_texts(unpack_strings(name, shape, contents[index]), shape)
                continue
            array = to_array(name, datatype, shape, contents[index])
        except ValueError as error:
            raise ServerError(f"malformed reply: {error}") from None
        if name == LENGTHS:
            lengths = array
        elif output.declared.fractions:
            arrays[name] = _whole(restored(array), output) if output.pruned_from else restored(array)
        else:
            arrays[name] = array
    if lengths is None:
        raise RuntimeError("lengths must be requested with texts")
    if lengths.min() < 0 or lengths.max() > extents.get("T", lengths.max()):
        raise ServerError(f"malformed reply: lengths {lengths.tolist()} for {extents.get('T')} tokens")
    if requested.weighted:
        _weight(arrays, requested)
    timings = {}
    for name in TIMINGS:
        if name in message.parameters and message.parameters[name].HasField("int64_param"):
            timings[name] = message.parameters[name].int64_param
    return Results(
        model=message.model_name,
        version=message.model_version,
        arrays=unpadded(arrays, requested, batch, lengths),
        tokens=None if rows is None else unpadded_tokens(rows, batch, lengths),
        lengths=lengths,
        heads=extents.get("H", 0),
        timings=timings,
    )


def _places(
    message: pb.ModelInferResponse, count: int, batch: Batch, requested: RequestedOutputs
) -> tuple[list[tuple[SelectedOutput, int, str, tuple[int, ...]]], dict[str, int]]:
    """Check what a reply with so many contents says of its outputs.

    Returns:
        Of each requested output the index of its content, its datatype and shape. And the size of each shape
        letter, which is the same in all outputs.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    names = list(map(_NAME_OF, message.outputs))
    if len(names) != count:
        raise ServerError(f"malformed reply: {len(names)} outputs with {count} contents")
    if len(set(names)) != len(names):
        raise ServerError(f"malformed reply: an output comes twice in {names}")
    extents = {"B": batch.size}
    for letter, given in (("T", batch.tokens), ("S", batch.memory_tokens)):
        if given is not None:
            extents[letter] = given
    places = []
    for output in requested.outputs:
        if output.name not in names:
            raise ServerError(f"malformed reply: {output.name} is missing, there are {sorted(names)}")
        index = names.index(output.name)
        datatype, shape = message.outputs[index].datatype, tuple(message.outputs[index].shape)
        fits = datatype in output.datatypes and len(shape) == len(output.dims)
        for dim, size in zip(output.dims, shape, strict=True) if fits else ():
            known = extents.setdefault(dim, size) if isinstance(dim, str) else dim
            fits = fits and size == known
        if not fits:
            raise _misfit(output, datatype, shape, extents)
        if output.pruned_from:
            extents.setdefault("H", output.pruned_from)
        places.append((output, index, datatype, shape))
    return places, extents


def _misfit(
    output: SelectedOutput, datatype: str, shape: tuple[int, ...], extents: Mapping[str, int]
) -> ServerError:
    """Return the error for an output whose datatype or shape is not what it must be."""
    if datatype not in output.datatypes:
        must, was = " or ".join(output.datatypes), datatype
    else:
        known: Mapping[Any, int] = extents
        dims = (f"{dim}={known[dim]}" if dim in known else str(dim) for dim in output.dims)
        must, was = f"[{', '.join(dims)}]", str(list(shape))
    return ServerError(f"malformed reply: {output.name} must be {must}, was {was}")


def _rows_of_texts(elements: Sequence[bytes], shape: tuple[int, ...]) -> list[list[str]]:
    """Return the rows of a BYTES output [B, T]."""
    texts, columns = [element.decode(errors="replace") for element in elements], shape[1]
    return [texts[row * columns : (row + 1) * columns] for row in range(shape[0])]


def _whole(array: NDArray[Any], output: SelectedOutput) -> NDArray[Any]:
    """Return weights with zeros for heads that were pruned."""
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


def unpadded(
    arrays: Mapping[str, NDArray[Any]], requested: RequestedOutputs, batch: Batch, lengths: NDArray[Any]
) -> Mapping[str, Arrays]:
    """Bring outputs [B, ...] into the form of the inputs, without the padding that they did not have.

    Args:
        arrays: The outputs by name.
        requested: What they are.
        batch: The inputs.
        lengths: The tokens of each sequence, [B].
    """
    form = batch.form
    if form is InputForm.ARRAY:
        return arrays
    # Keep the caller's padding; remove that of the client or the server.
    cuts = lengths if form is InputForm.RAGGED or batch.tokens is None else None
    found: dict[str, Arrays] = dict(arrays)
    for output in requested.outputs:
        if output.name not in arrays:
            continue
        if form is InputForm.RAGGED and not output.token_axes + output.memory_axes:
            continue
        array = arrays[output.name]
        if cuts is batch.memory_lengths is None:
            found[output.name] = array[0]
            continue
        items = list(array)
        for axes, of_axes in ((output.token_axes, cuts), (output.memory_axes, batch.memory_lengths)):
            if of_axes is not None and axes:
                slices = [slice(None)] * (array.ndim - 1)
                for index, length in enumerate(of_axes):
                    for axis in axes:
                        slices[axis] = slice(length)
                    items[index] = items[index][tuple(slices)]
        found[output.name] = items[0] if form is InputForm.SINGLE else items
    return found


def unpadded_tokens(
    rows: list[list[str]], batch: Batch, lengths: NDArray[Any]
) -> list[str] | list[list[str]]:
    """Trim the tokens of each sequence to its length, likewise."""
    if batch.form is InputForm.RAGGED or batch.tokens is None:
        rows = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    return rows[0] if batch.form is InputForm.SINGLE else rows


def _of_layer(arrays: Arrays, axis: int | None, index: int, single: bool) -> Arrays:
    """Take one layer; `axis` is counted with B, None where there is but one."""
    if axis is None:
        return arrays
    if isinstance(arrays, list):
        return [_of_layer(array, axis, index, True) for array in arrays]
    return arrays[(slice(None),) * (axis - single) + (index,)]
