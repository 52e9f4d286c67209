"""Check the reply to a request of `encode`, and bring it into the form of the inputs.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from polyhead_client.errors import ServerError
from polyhead_client.inputs import Batch
from polyhead_client.insight import norm_weighted
from polyhead_client.padding import Arrays, InputForm
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_client.results import Results
from polyhead_client.tensors import to_array, to_texts
from polyhead_proto import messages as pb
from polyhead_proto.names import LENGTHS, TIMINGS, TOKENS
from polyhead_proto.outputs.attention import Weights
from polyhead_proto.wire import ParsedReply, read_reply

Content = bytes | memoryview


def parse_reply(data: bytes, kind: type[Message]) -> ParsedReply:
    """Parse the reply to an inference request, with its contents as views of `data`.

    Raises:
        ServerError: The reply is malformed.
    """
    try:
        return read_reply(data, kind)
    except DecodeError as error:
        raise ServerError(f"malformed reply: it is no {kind.DESCRIPTOR.name}: {error}") from error


def read(
    message: pb.ModelInferResponse,
    contents: Sequence[Content],
    batch: Batch,
    requested: RequestedOutputs,
) -> Results:
    """Read a ModelInferResponse.

    Args:
        message: The reply, without its contents.
        contents: The raw contents of its outputs.
        batch: The inputs of the request.
        requested: The outputs of the request.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    reply = _Reply(message, contents, batch)
    outputs = {output.name: output for output in requested.outputs}
    # Neither is an output of a graph.
    tokens, lengths = outputs.pop(TOKENS, None), outputs.pop(LENGTHS, None)
    rows = None if tokens is None else reply.texts(tokens)
    arrays = {name: reply.array(output) for name, output in outputs.items()}
    counts = batch.lengths if lengths is None else reply.lengths(lengths)
    if counts is None:
        raise RuntimeError("lengths must be requested with texts")
    if requested.weighted:
        _weight(arrays, requested)

    unpadder = Unpadder(batch, counts)
    return Results(
        model=message.model_name,
        version=message.model_version,
        arrays={name: unpadder.output(arrays[name], output) for name, output in outputs.items()},
        tokens=None if rows is None else unpadder.tokens(rows),
        lengths=counts,
        heads=reply.extents.get("H", 0),
        timings={
            name: message.parameters[name].int64_param
            for name in TIMINGS
            if name in message.parameters and message.parameters[name].HasField("int64_param")
        },
    )


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


class _Reply:
    """The outputs of a reply by name. A shape letter has the same size in all of them."""

    def __init__(self, message: pb.ModelInferResponse, raw_contents: Sequence[Content], batch: Batch) -> None:
        sizes = {"B": batch.size, "T": batch.tokens, "S": batch.memory_tokens}
        self.extents = {letter: size for letter, size in sizes.items() if size is not None}
        outputs, contents = len(message.outputs), len(raw_contents)
        if outputs != contents:
            raise ServerError(f"malformed reply: {outputs} outputs with {contents} contents")
        self._outputs = {
            output.name: (output.datatype, tuple(output.shape), index)
            for index, output in enumerate(message.outputs)
        }
        if len(self._outputs) != len(message.outputs):
            raise ServerError(
                f"malformed reply: an output comes twice in {[o.name for o in message.outputs]}"
            )
        self._contents = raw_contents

    def texts(self, output: SelectedOutput) -> list[list[str]]:
        datatype, shape, raw = self._raw(output.name)
        rows = to_texts(output.name, datatype, shape, raw, batch=self.extents["B"])
        self._check(output, shape)
        return rows

    def lengths(self, output: SelectedOutput) -> NDArray[Any]:
        lengths = self.array(output)
        if lengths.min() < 0 or ("T" in self.extents and lengths.max() > self.extents["T"]):
            raise ServerError(
                f"malformed reply: lengths {lengths.tolist()} for {self.extents.get('T')} tokens"
            )
        return lengths

    def array(self, output: SelectedOutput) -> NDArray[Any]:
        datatype, shape, raw = self._raw(output.name)
        if datatype not in output.datatypes:
            raise ServerError(
                f"malformed reply: {output.name} must be {' or '.join(output.datatypes)}, was {datatype}"
            )
        self._check(output, shape)
        array = to_array(output.name, datatype, shape, raw)
        if not output.declared.fractions:
            return array
        if array.dtype == np.uint8:
            array = np.asarray(array / np.float32(255), np.float32)
        array = array.astype(np.float32, copy=False)
        return self._with_pruned(array, output) if output.pruned_from else array

    def _with_pruned(self, array: NDArray[Any], output: SelectedOutput) -> NDArray[Any]:
        """Put heads in their places: [B, H of the layer, …] → [B, H, …], 0 for those that were pruned."""
        batch, _, *rest = array.shape
        whole = np.zeros((batch, output.pruned_from, *rest), array.dtype)
        whole[:, list(output.tensor.heads or ())] = array
        self.extents.setdefault("H", output.pruned_from)
        return whole

    def _raw(self, name: str) -> tuple[str, tuple[int, ...], Content]:
        if name not in self._outputs:
            raise ServerError(f"malformed reply: {name} is missing, there are {sorted(self._outputs)}")
        datatype, shape, index = self._outputs[name]
        return datatype, shape, self._contents[index]

    def _check(self, output: SelectedOutput, shape: tuple[int, ...]) -> None:
        dims = output.dims
        if len(shape) == len(dims):
            expected = [
                self.extents.setdefault(dim, extent) if isinstance(dim, str) else dim
                for dim, extent in zip(dims, shape, strict=True)
            ]
            if list(shape) == expected:
                return
        spelled = [f"{dim}={self.extents[dim]}" if dim in self.extents else str(dim) for dim in dims]
        raise ServerError(f"malformed reply: {output.name} must be [{', '.join(spelled)}], was {list(shape)}")


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
