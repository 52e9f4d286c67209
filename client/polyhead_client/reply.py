"""Check the reply to a request of `encode`, and bring it into the form of the inputs.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from polyhead_client.encoding import Arrays, Encoding, Timings
from polyhead_client.errors import ServerError
from polyhead_client.inputs import Batch
from polyhead_client.padding import InputForm
from polyhead_client.selection import RequestedOutputs
from polyhead_client.tensors import to_array, to_texts
from polyhead_proto import messages as pb
from polyhead_proto.names import LENGTHS, OUTPUT, POOLED, TIMINGS, TOKENS
from polyhead_proto.wire import Reply, read_reply

Content = bytes | memoryview


def parse_reply(data: bytes, kind: type[Message]) -> Reply:
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
) -> Encoding:
    """Turn a ModelInferResponse into an encoding, whose `total_ns` the caller sets.

    Args:
        message: The reply, without its contents.
        contents: The raw contents of its outputs.
        batch: The inputs of the request.
        requested: The outputs of the request.

    Raises:
        ServerError: The reply does not match the request, or is malformed.
    """
    reply = _Reply(message, contents, batch)
    tokens = reply.texts(TOKENS) if TOKENS in requested.outputs else None
    output = reply.floats(OUTPUT, "B", "T", "D") if OUTPUT in requested.outputs else None
    pooled = reply.floats(POOLED, "B", "D") if POOLED in requested.outputs else None
    heads = "H" if requested.heads is None else len(requested.heads)
    queries = "T" if requested.queries is None else len(requested.queries)
    weights = {
        layer: reply.weights(name, "B", heads, queries, "T") for layer, name in requested.layers.items()
    }
    lengths = reply.lengths() if batch.lengths is None else batch.lengths

    unpadder = Unpadder(batch, lengths)
    cut_axes = (1, 2) if requested.queries is None else (2,)
    return Encoding(
        model=message.model_name,
        version=message.model_version,
        output=None if output is None else unpadder.arrays(output, (0,)),
        pooled=pooled if pooled is None or batch.form is not InputForm.SINGLE else pooled[0],
        attention=MappingProxyType(
            {layer: unpadder.arrays(array, cut_axes) for layer, array in weights.items()}
        )
        if weights
        else None,
        heads=(requested.heads or tuple(range(reply.extents["H"]))) if weights else None,
        queries=requested.queries,
        tokens=None if tokens is None else unpadder.tokens(tokens),
        lengths=int(lengths[0]) if batch.form is InputForm.SINGLE else lengths,
        timings=Timings(
            total_ns=0,
            **{
                name: message.parameters[name].int64_param
                for name in TIMINGS
                if name in message.parameters and message.parameters[name].HasField("int64_param")
            },
        ),
    )


class _Reply:
    """The outputs of a reply by name. A shape letter has the same size in all of them."""

    def __init__(self, message: pb.ModelInferResponse, raw_contents: Sequence[Content], batch: Batch) -> None:
        self.extents = {"B": batch.size} | ({} if batch.tokens is None else {"T": batch.tokens})
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

    def texts(self, name: str) -> list[list[str]]:
        datatype, shape, raw = self._raw(name)
        rows = to_texts(name, datatype, shape, raw, batch=self.extents["B"])
        self._check(name, shape, ("B", "T"))
        return rows

    def lengths(self) -> NDArray[Any]:
        lengths = self._array(LENGTHS, ("B",), ("INT32", "INT64"))
        if lengths.min() < 0 or ("T" in self.extents and lengths.max() > self.extents["T"]):
            raise ServerError(
                f"malformed reply: lengths {lengths.tolist()} for {self.extents.get('T')} tokens"
            )
        return lengths

    def floats(self, name: str, *dims: str | int) -> NDArray[Any]:
        return self._array(name, dims, ("FP32", "FP16"))

    def weights(self, name: str, *dims: str | int) -> NDArray[Any]:
        array = self._array(name, dims, ("FP32", "FP16", "UINT8"))
        if array.dtype == np.uint8:
            return np.asarray(array / np.float32(255), np.float32)
        return array.astype(np.float32, copy=False)

    def _array(self, name: str, dims: Sequence[str | int], datatypes: Sequence[str]) -> NDArray[Any]:
        datatype, shape, raw = self._raw(name)
        if datatype not in datatypes:
            raise ServerError(f"malformed reply: {name} must be {' or '.join(datatypes)}, was {datatype}")
        self._check(name, shape, dims)
        return to_array(name, datatype, shape, raw)

    def _raw(self, name: str) -> tuple[str, tuple[int, ...], Content]:
        if name not in self._outputs:
            raise ServerError(f"malformed reply: {name} is missing, there are {sorted(self._outputs)}")
        datatype, shape, index = self._outputs[name]
        return datatype, shape, self._contents[index]

    def _check(self, name: str, shape: tuple[int, ...], dims: Sequence[str | int]) -> None:
        if len(shape) == len(dims):
            expected = [
                self.extents.setdefault(dim, extent) if isinstance(dim, str) else dim
                for dim, extent in zip(dims, shape, strict=True)
            ]
            if list(shape) == expected:
                return
        spelled = [f"{dim}={self.extents[dim]}" if dim in self.extents else str(dim) for dim in dims]
        raise ServerError(f"malformed reply: {name} must be [{', '.join(spelled)}], was {list(shape)}")


class Unpadder:
    """Brings outputs [B, ...] into the form of the inputs, without the padding that they did not have."""

    def __init__(self, batch: Batch, lengths: NDArray[Any]) -> None:
        self._form = batch.form
        # Keep the caller's padding; remove that of the client or the server.
        self._cuts = lengths if batch.form is InputForm.RAGGED or batch.tokens is None else None

    def arrays(self, array: NDArray[Any], axes: tuple[int, ...]) -> Arrays:
        """Trim `axes` (counted without B) to the length of each sequence."""
        if self._form is InputForm.ARRAY:
            return array
        items = list(array)
        if self._cuts is not None:
            slices = [slice(None)] * (array.ndim - 1)
            for index, length in enumerate(self._cuts):
                for axis in axes:
                    slices[axis] = slice(length)
                items[index] = items[index][tuple(slices)]
        return items[0] if self._form is InputForm.SINGLE else items

    def tokens(self, rows: list[list[str]]) -> list[str] | list[list[str]]:
        """Trim the tokens of each sequence to its length."""
        if self._cuts is not None:
            rows = [row[:length] for row, length in zip(rows, self._cuts, strict=True)]
        return rows[0] if self._form is InputForm.SINGLE else rows
