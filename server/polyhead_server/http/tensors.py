"""The Open Inference Protocol over REST: JSON, with or without binary tensors.

A request gets the header that a gRPC client would have sent, and is checked where that is. Only what JSON
adds is checked here: its fields and their types, and that an array of numbers is the tensor that it says.
Shape letters: B batch, T tokens.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import Field, InstanceOf, model_validator
from pydantic_core import PydanticCustomError

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, pack_strings, unpack_strings
from polyhead_server.errors import InvalidRequestError, quoted
from polyhead_server.http.caller import Caller
from polyhead_server.http.fields import Body, Described, Natural, shown
from polyhead_server.inference.outputs import OutputLayout
from polyhead_server.inference.parameters import read_input_parameters
from polyhead_server.inference.reply import Content, InferReply, memory_of
from polyhead_server.inference.wire import InferRequest, make_request

NUMBERS_AT_ONCE = 32_768
"""Elements of a tensor that are written as text in one go: about a millisecond."""

_ELEMENTS: Mapping[str, tuple[Set[type], str]] = {
    "b": ({bool}, "booleans"),
    "i": ({int}, "whole numbers"),
    "u": ({int}, "whole numbers"),
    "f": ({int, float}, "numbers"),
}
"""What the elements of an array may be, by NumPy's kind of datatype."""
_MOST = 2**63
_MOST_TENSORS = 4096
_MOST_PARAMETERS = 64
_EXAMPLE: dict[str, Any] = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A cat sat on the mat."]}],
    "outputs": [{"name": "pooled"}],
}
Values = Mapping[str, bool | float | str | None]
"""Parameters, as JSON has them; None is one that there is not."""

IsBinary = Callable[[str], bool]
"""Whether an output is to be written in binary."""


# ---- Requests ----------------------------------------------------------------------------------

Datatype = Annotated[str, Field(pattern=f"^({'|'.join((*DTYPES, 'BYTES'))})$")]


_IN_64_BITS = Field(ge=-_MOST, lt=_MOST)
_Value = bool | str | Annotated[int, _IN_64_BITS] | Annotated[float, _IN_64_BITS]


class GivenParameters(Body, extra="allow", json_schema_extra={"maxProperties": _MOST_PARAMETERS}):
    """Parameters, of which HTTP itself has a few."""

    __pydantic_extra__: dict[str, _Value] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        """Reject many before each is looked at: pydantic does not end at the first that is wrong."""
        if isinstance(value, dict) and len(value) > _MOST_PARAMETERS:
            words = "Object should have at most {most} items after validation, not {count}"
            raise PydanticCustomError("too_long", words, {"most": _MOST_PARAMETERS, "count": len(value)})
        return value

    @property
    def others(self) -> Values:
        """Those that gRPC has, too."""
        return self.model_extra or {}


class InferInputParameters(GivenParameters):
    """Parameters of an input."""

    binary_data_size: Natural | None = None
    """Its bytes after the JSON, in place of data"""


class InferOutputParameters(GivenParameters):
    """What part of an output to send, and how: heads, queries, dtype, and others."""

    binary_data: bool | None = None
    """Whether it follows the JSON, in bytes"""


class InferRequestParameters(GivenParameters):
    """Priority, timeout and other parameters of a request."""

    binary_data_output: bool = False
    """Whether outputs follow the JSON, in bytes, that do not say it themselves"""


_OF_INPUT, _OF_OUTPUT, _OF_REQUEST = InferInputParameters(), InferOutputParameters(), InferRequestParameters()
"""Where none are given."""


class InferInput(Body):
    """A tensor that goes in."""

    name: str
    """The input's name"""
    datatype: Datatype
    """The input's, from the metadata"""
    shape: Annotated[list[Natural], Field(fail_fast=True, max_length=8)]
    """The sizes of its axes"""
    data: InstanceOf[list[Any]] | None = None  # not copied, as it may be long; `pack` checks the elements
    """Its elements, flat or nested as the shape"""
    parameters: InferInputParameters | None = None


class InferOutput(Body):
    """An output to return."""

    name: str
    """The output's name"""
    parameters: InferOutputParameters | None = None


class InferBody(Body, json_schema_extra={"example": _EXAMPLE}):
    """The JSON of an inference request."""

    inputs: Annotated[list[InferInput], Field(fail_fast=True, max_length=_MOST_TENSORS)]
    """The tensors that go in"""
    outputs: Annotated[list[InferOutput], Field(fail_fast=True, max_length=_MOST_TENSORS)] | None = None
    """The tensors to return; without, all"""
    parameters: InferRequestParameters | None = None
    id: Annotated[str, Field(max_length=1024)] | None = None
    """Returned in the reply: at most 1024 bytes of UTF-8"""
    model_name: str | None = None
    """As in the path, if at all"""
    model_version: str | None = None
    """As in the path, if at all"""


def read_request(
    body: InferBody, caller: Caller, model: pb.ModelReadyRequest
) -> tuple[InferRequest, IsBinary]:
    """Read a request; takes long where the body is large.

    Args:
        body: The JSON. The elements of tensors are taken out of it.
        caller: Has the binary tensors that follow it, and parameters that the body may override.
        model: The model that the path names, with its version, if that is there.

    Returns:
        The request, whose binary tensors are views, and which outputs to write in binary.

    Raises:
        InvalidRequestError: Something is wrong.
    """
    binary, version = caller.binary, model.version or body.model_version or ""
    for field, given, of_path in (
        ("model_name", body.model_name, model.name),
        ("model_version", body.model_version, version),
    ):
        if given and given != of_path:
            raise InvalidRequestError(f"{field} must be that of the path, was {quoted(given)}")
    its = body.parameters or _OF_REQUEST
    message = pb.ModelInferRequest(
        model_name=model.name,
        model_version=version,
        id=body.id or "",
        parameters=write_parameters({**caller.parameters, **its.others}),
    )
    raw: list[bytes | memoryview] = []
    end = 0
    for one in body.inputs:
        of = one.parameters or _OF_INPUT
        own, count = write_parameters(of.others), of.binary_data_size
        message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape, parameters=own)
        if count is not None and one.data is not None:
            raise InvalidRequestError(f"{one.name} must have data or binary_data_size, had both")
        if one.data is not None:
            raw.append(pack(one.name, one.datatype, one.shape, one.data))
            one.data.clear()  # others refer to the list, and its elements take ten times the bytes
        elif count is None:
            # Which knows of tensors in shared memory, too.
            read_input_parameters(own, f"input {quoted(one.name)}", text=True)
            raise InvalidRequestError(
                f"{one.name} (without parameter binary_data_size) must have the field data"
            )
        elif count > len(binary) - end:
            raise InvalidRequestError(
                f"binary_data_size of {one.name} must be at most the {len(binary) - end} bytes that are "
                f"left of the body, was {count}"
            )
        else:
            raw.append(binary[end : end + count])
            end += count
    if end != len(binary):
        raise InvalidRequestError(
            f"the body must end with the last binary input, {len(binary) - end} bytes follow"
        )
    in_binary: dict[str, bool] = {}
    for output in body.outputs or ():
        wanted = output.parameters or _OF_OUTPUT
        message.outputs.add(name=output.name, parameters=write_parameters(wanted.others))
        if wanted.binary_data is not None:
            in_binary[output.name] = wanted.binary_data
    request = make_request(message, raw, kept=caller.body_bytes if end else 0)
    return request, lambda output: in_binary.get(output, its.binary_data_output)


def write_parameters(values: Values) -> dict[str, pb.InferParameter]:
    """Return the parameters that there are, as the gRPC messages have them."""
    fields: Mapping[type, Any] = {
        bool: "bool_param",
        str: "string_param",
        int: "int64_param",
        float: "double_param",
    }
    return {
        name: pb.InferParameter(**{str(fields[type(value)]): value})  # type: ignore[arg-type] # as its type
        for name, value in values.items()
        if value is not None
    }


def pack(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any]) -> bytes:
    """Return the raw contents of a tensor that is given as an array, flat or nested as its shape.

    Raises:
        InvalidRequestError: The array is not such a tensor.
    """
    flat, sizes = _flatten(name, data)
    if len(sizes) > 1 and sizes != list(shape):
        raise InvalidRequestError(f"data of {name} must be flat or have shape {list(shape)}, had {sizes}")
    if len(flat) != (expected := math.prod(shape)):
        raise InvalidRequestError(
            f"{name} must have {expected} values for shape {list(shape)}, had {len(flat)}"
        )
    if datatype == "BYTES":
        _check_elements(name, flat, {str}, "strings")
        return pack_strings(map(str.encode, flat))
    dtype = DTYPES[datatype]
    kinds, words = _ELEMENTS[dtype.kind]
    _check_elements(name, flat, kinds, f"{words} for {datatype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype)
        fits = dtype.kind != "f" or bool(np.isfinite(array).all())
    except OverflowError:
        fits = False
    if not fits:
        raise InvalidRequestError(f"data of {name} must be numbers that {datatype} can hold, some are larger")
    return array.tobytes()


def _flatten(name: str, data: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
    """Return the elements of nested arrays, and how many there are on each level."""
    flat, sizes = data, [len(data)]
    while flat and isinstance(flat[0], list):
        if set(map(type, flat)) != {list} or len({*map(len, flat)}) != 1:
            raise InvalidRequestError(f"data of {name} must be nested evenly, level {len(sizes)} is not")
        sizes.append(len(flat[0]))
        flat = list(chain.from_iterable(flat))
    return flat, sizes


def _check_elements(name: str, flat: Sequence[Any], kinds: Set[type], words: str) -> None:
    if wrong := set(map(type, flat)) - kinds:
        place, value = next((at, value) for at, value in enumerate(flat) if type(value) in wrong)
        raise InvalidRequestError(f"data of {name} must be {words}, element {place} was {shown(value)}")


# ---- Replies -----------------------------------------------------------------------------------


def write_reply(
    reply: InferReply, is_binary: IsBinary
) -> tuple[Iterator[bytes], int, list[bytes | memoryview]]:
    """Write a reply. Its binary tensors are copied only if they are not contiguous.

    Returns:
        The JSON, in pieces that are made as they are taken; the elements of tensors in it, which is what it
        costs; and the binary tensors that follow.
    """
    tensors = list(zip(reply.outputs, reply.contents, strict=True))
    raw = [memory_of(content) for output, content in tensors if is_binary(output.spec.name)]
    elements = sum(math.prod(output.shape) for output, _ in tensors if not is_binary(output.spec.name))
    return _pieces(reply, is_binary), elements, raw


def _pieces(reply: InferReply, is_binary: IsBinary) -> Iterator[bytes]:
    signature = reply.signature
    header: dict[str, Any] = {"model_name": signature.name, "model_version": str(signature.version)}
    if reply.request_id:
        header["id"] = reply.request_id
    header["parameters"] = reply.timings
    yield orjson.dumps(header)[:-1] + b',"outputs":['
    for number, (output, content) in enumerate(zip(reply.outputs, reply.contents, strict=True)):
        name = output.spec.name
        tensor: dict[str, Any] = {"name": name, "datatype": output.datatype, "shape": output.shape}
        begin = b"," * bool(number)
        if is_binary(name):
            yield begin + orjson.dumps({**tensor, "parameters": {"binary_data_size": output.bytes}})
            continue
        yield begin + orjson.dumps(tensor)[:-1] + b',"data":['
        yield from _numbers(output, content)
        yield b"]}"
    yield b"]}"


def _numbers(output: OutputLayout, content: Content) -> Iterator[bytes]:
    """Write the elements of a tensor as text, some at a time."""
    if isinstance(content, bytes):
        strings = unpack_strings(output.spec.name, output.shape, content)
        elements: Any = [text.decode() for text in strings]
    else:
        elements = content.reshape(-1)
    for start in range(0, len(elements), NUMBERS_AT_ONCE):
        text = orjson.dumps(elements[start : start + NUMBERS_AT_ONCE], option=orjson.OPT_SERIALIZE_NUMPY)
        yield b"," * bool(start) + text[1:-1]


class InferredTensor(Described):
    """An output."""

    name: str
    datatype: str
    shape: list[int]
    data: list[bool | float | str | None] | None = None
    """Its elements, flat; null stands for NaN"""
    parameters: dict[str, int] | None = None
    """binary_data_size: its bytes after the JSON, in place of data"""


class InferenceReply(Described):
    """The JSON of a reply to an inference."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, int]
    """Nanoseconds of each stage"""
    outputs: list[InferredTensor]
