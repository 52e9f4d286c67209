"""Assemble a reply that comes in parts: each part holds one output or a block of one.

The blocks of an output are consecutive pieces of its bytes, which are copied into one buffer. An output that
comes in one piece is not copied.
"""

import math
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from polyhead_client.errors import ServerError
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import FINAL, PART, START, WHOLE
from polyhead_proto.wire import read_reply

Output = pb.ModelInferResponse.InferOutputTensor


class Assembly:
    """Collects the parts of one reply.

    Attributes:
        message: The reply, without its contents.
        contents: The raw contents of its outputs.
    """

    def __init__(self) -> None:
        self.message = pb.ModelInferResponse()
        self.contents: list[memoryview] = []
        self._count = 0
        self._block: NDArray[np.uint8] | None = None
        self._filled = 0

    def add(self, data: bytes) -> bool:
        """Add the next message of the stream; return whether it was the last.

        Raises:
            ServerError: It is not a part, or not the next one.
        """
        try:
            part, contents, failure = read_reply(data, pb.ModelStreamInferResponse)
        except DecodeError as error:
            raise ServerError(f"malformed reply: it is no ModelStreamInferResponse: {error}") from error
        if failure:
            raise ServerError(failure)
        number = part.parameters[PART].int64_param if PART in part.parameters else None
        if number != self._count or len(part.outputs) != 1 or len(contents) != 1:
            raise ServerError(
                f"malformed reply: part {self._count} must hold one output, was part {number} "
                f"with {len(part.outputs)} outputs and {len(contents)} contents"
            )
        self._count += 1
        self._add(part.outputs[0], contents[0])
        final = part.parameters[FINAL].bool_param
        if final and self._block is not None:
            raise ServerError(f"malformed reply: {self.message.outputs[-1].name} is not complete")
        if final:
            self.message.model_name, self.message.model_version = part.model_name, part.model_version
            self.message.id = part.id
            for name, parameter in part.parameters.items():
                self.message.parameters[name].CopyFrom(parameter)
        return final

    def _add(self, output: Output, raw: memoryview) -> None:
        whole, start = (_numbers(output, name) for name in (WHOLE, START))
        if whole is None or start is None:
            if self._block is not None:
                raise ServerError(f"malformed reply: {self.message.outputs[-1].name} is not complete")
            self.message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
            self.contents.append(raw)
            return
        if self._block is None:
            self.message.outputs.add(name=output.name, datatype=output.datatype, shape=whole)
            self._block, self._filled = _allocate(output, whole), 0
        current = self.message.outputs[-1]
        item = DTYPES[current.datatype].itemsize
        end = self._filled + len(raw)
        if (
            (output.name, output.datatype, whole) != (current.name, current.datatype, list(current.shape))
            or _offset(start, whole) * item != self._filled
            or not 0 < math.prod(output.shape) * item == len(raw) <= len(self._block) - self._filled
        ):
            raise ServerError(
                f"malformed reply: {output.name} {whole} from {start}, {list(output.shape)} with {len(raw)} "
                f"bytes, does not follow {self._filled} bytes of {current.name} {list(current.shape)}"
            )
        self._block[self._filled : end] = np.frombuffer(raw, np.uint8)
        self._filled = end
        if end == len(self._block):
            self.contents.append(self._block.data)
            self._block = None


def _numbers(output: Output, parameter: str) -> list[int] | None:
    if parameter not in output.parameters:
        return None
    spelled = output.parameters[parameter].string_param
    numbers = spelled.split(",")
    if not all(number.isdecimal() and len(number) < 19 for number in numbers):
        raise ServerError(f"malformed reply: {parameter} of {output.name} is {spelled[:80]!r}")
    return [int(number) for number in numbers]


def _allocate(output: Output, whole: Sequence[int]) -> NDArray[np.uint8]:
    if output.datatype not in DTYPES:
        raise ServerError(f"malformed reply: {output.name} has the unknown datatype {output.datatype!r}")
    size = math.prod(whole) * DTYPES[output.datatype].itemsize
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ServerError(f"{output.name} has {size} bytes, more than there is memory for") from error


def _offset(start: Sequence[int], whole: Sequence[int]) -> int:
    """Return the number of elements before an index, in row-major order; -1 if the index is not valid."""
    if len(start) != len(whole):
        return -1
    offset = 0
    for at, size in zip(start, whole, strict=True):
        if at >= size:
            return -1
        offset = offset * size + at
    return offset
