"""The Open Inference Protocol over REST: JSON, with or without binary tensors.

A request gets the header that a gRPC client would have sent, and is checked where that is. Only what JSON
adds is checked here: its fields and their types, and that an array of numbers is the tensor that it says.
Shape letters: B batch, T tokens.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES, pack_strings, unpack_strings
from polyhead_server.errors import InvalidRequestError, listed, quoted
from polyhead_server.http.documents import Field, Fields, need, read_json, shown
from polyhead_server.inference.outputs import OutputLayout
from polyhead_server.inference.reply import Content, InferReply, memory_of
from polyhead_server.inference.wire import InferRequest, make_request

NUMBERS_AT_ONCE = 32_768
"""Elements of a tensor that are written as text in one go: about a millisecond."""

_INPUT = Fields(
    {
        "name": Field("The input's name", [str], required=True),
        "datatype": Field(
            "FP32, INT64, BYTES and so on: the input's, from the metadata", [str], required=True
        ),
        "shape": Field("The sizes of its axes", [list], required=True),
        "data": Field("Its elements, flat or nested as the shape", [list]),
        "parameters": Field("binary_data_size: its bytes after the JSON, in place of data", [dict]),
    }
)
_OUTPUT = Fields(
    {
        "name": Field("The output's name", [str], required=True),
        "parameters": Field("What part of it to send, and how: binary_data, heads, queries, dtype", [dict]),
    }
)
REQUEST = Fields(
    {
        "inputs": Field("The tensors that go in", [list], required=True, items=_INPUT),
        "outputs": Field("The tensors to return; without, all", [list], items=_OUTPUT),
        "parameters": Field("binary_data_output, priority, timeout and others of the request", [dict]),
        "id": Field("Returned in the reply", [str]),
        "model_name": Field("As in the path, if at all", [str]),
        "model_version": Field("As in the path, if at all", [str]),
    },
    example={
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A cat sat on the mat."]}],
        "outputs": [{"name": "pooled"}],
    },
)
"""The JSON of an inference request."""

_ELEMENTS: Mapping[str, tuple[Set[type], str]] = {
    "b": ({bool}, "booleans"),
    "i": ({int}, "whole numbers"),
    "u": ({int}, "whole numbers"),
    "f": ({int, float}, "numbers"),
}
"""What the elements of an array may be, by NumPy's kind of datatype."""
_MOST = 2**63
_MOST_SIZES = 8
_MOST_TENSORS = 4096
Parameters = Mapping[str, bool | str | int]

IsBinary = Callable[[str], bool]
"""Whether an output is to be written in binary."""


# ---- Requests ----------------------------------------------------------------------------------


def read_request(
    body: memoryview, json_size: int | None, *, model: str, version: str, given: Parameters
) -> tuple[InferRequest, IsBinary]:
    """Read a request; takes long where the body is large.

    Args:
        body: JSON, and binary tensors after it.
        json_size: The bytes of JSON; None: all are.
        model: The model that the path names.
        version: Likewise; empty for the newest.
        given: Parameters that the request has unless the body has them.

    Returns:
        The request, whose binary tensors are views of the body, and which outputs to write in binary.

    Raises:
        InvalidRequestError: Something is wrong.
        TooLargeError: There is too much JSON.
    """
    size = len(body) if json_size is None else json_size
    if json_size is not None and not 0 < size <= len(body):
        raise InvalidRequestError(
            f"Inference-Header-Content-Length must be from 1 to the {len(body)} bytes of the body, was {size}"
        )
    fields = REQUEST.read(read_json(body[:size]), "the request")
    for name, of_path in (("model_name", model), ("model_version", version)):
        if fields.get(name, of_path) not in {of_path, ""} and (name == "model_name" or version):
            raise InvalidRequestError(f"{name} must be that of the path, was {quoted(fields[name])}")
    parameters = {**given, **fields.get("parameters", {})}
    binary = _flag(parameters, "binary_data_output", "the request")
    message = pb.ModelInferRequest(
        model_name=model,
        model_version=version or fields.get("model_version", ""),
        id=_text(fields.get("id", ""), "id"),
        parameters=write_parameters(parameters, "the request", but="binary_data_output"),
    )
    for name in ("inputs", "outputs"):
        if len(fields.get(name, ())) > _MOST_TENSORS:
            raise InvalidRequestError(f"{name} must be at most {_MOST_TENSORS}, were {len(fields[name])}")
    raw: list[bytes | memoryview] = []
    end, kept = size, 0
    for number, one in enumerate(fields["inputs"]):
        described = _INPUT.read(one, f"inputs[{number}]")
        tensor, count = _describe(described, f"inputs[{number}]")
        message.inputs.append(tensor)
        if count is None:
            need(described, f"{tensor.name} (without parameter binary_data_size)", "data")
            raw.append(pack(tensor.name, tensor.datatype, tensor.shape, described["data"]))
            continue
        if "data" in described:
            raise InvalidRequestError(f"{tensor.name} must have data or binary_data_size, had both")
        if count > len(body) - end:
            raise InvalidRequestError(
                f"binary_data_size of {tensor.name} must be at most the {len(body) - end} bytes that are "
                f"left of the body, was {count}"
            )
        raw.append(body[end : end + count])
        end, kept = end + count, len(body)
    if end != len(body):
        raise InvalidRequestError(
            f"the body must end with the last binary input, {len(body) - end} bytes follow"
        )
    outputs: dict[str, bool] = {}
    for number, one in enumerate(fields.get("outputs", ())):
        wanted = _OUTPUT.read(one, f"outputs[{number}]")
        name, own = wanted["name"], wanted.get("parameters", {})
        if "binary_data" in own:
            outputs[name] = _flag(own, "binary_data", f"output {quoted(name)}")
        message.outputs.add(
            name=_text(name, "name of an output"),
            parameters=write_parameters(own, f"output {quoted(name)}", but="binary_data"),
        )
    return make_request(message, raw, kept=kept), lambda output: outputs.get(output, binary)


def write_parameters(
    values: Mapping[str, object], whose: str, *, but: str = ""
) -> dict[str, pb.InferParameter]:
    """Return parameters as the gRPC messages have them.

    Raises:
        InvalidRequestError: A value is neither a boolean, a number nor a string.
    """
    found: dict[str, pb.InferParameter] = {}
    for name, value in values.items():
        if name == but:
            continue
        _text(name, f"the name of a parameter of {whose}")
        if isinstance(value, bool):
            found[name] = pb.InferParameter(bool_param=value)
        elif isinstance(value, int) and -_MOST <= value < _MOST:
            found[name] = pb.InferParameter(int64_param=value)
        elif isinstance(value, float) and math.isfinite(value):
            found[name] = pb.InferParameter(double_param=value)
        elif isinstance(value, str):
            found[name] = pb.InferParameter(string_param=_text(value, f"parameter {name}"))
        else:
            raise InvalidRequestError(
                f"parameter {quoted(name)} of {whose} must be a boolean, a string or a number of 64 bits, "
                f"was {shown(value)}"
            )
    return found


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
    if datatype not in DTYPES and datatype != "BYTES":
        known = listed((*DTYPES, "BYTES"))
        raise InvalidRequestError(f"datatype of {name} must be one of {known}, was {quoted(datatype)}")
    if datatype == "BYTES":
        _check_elements(name, flat, {str}, "strings")
        return pack_strings(
            _text(text, f"element {place} of data of {name}").encode() for place, text in enumerate(flat)
        )
    dtype = DTYPES[datatype]
    must, words = _ELEMENTS[dtype.kind]
    _check_elements(name, flat, must, f"{words} for {datatype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype)
        fits = dtype.kind != "f" or bool(np.isfinite(array).all())
    except OverflowError:
        fits = False
    if not fits:
        raise InvalidRequestError(f"data of {name} must be numbers that {datatype} can hold, some are larger")
    return array.tobytes()


def _describe(
    given: Mapping[str, Any], whose: str
) -> tuple[pb.ModelInferRequest.InferInputTensor, int | None]:
    """Return what an input says of itself, and the size of its binary contents if it has such."""
    name, datatype, shape = given["name"], given["datatype"], given["shape"]
    if len(shape) > _MOST_SIZES:
        raise InvalidRequestError(
            f"shape of {quoted(name)} must have at most {_MOST_SIZES} sizes, had {len(shape)}"
        )
    for size in shape:
        if type(size) is not int or not 0 <= size < _MOST:
            raise InvalidRequestError(
                f"shape of {quoted(name)} must be whole numbers from 0, had {shown(size)}"
            )
    parameters = given.get("parameters", {})
    count = parameters.get("binary_data_size")
    if count is not None and (type(count) is not int or count < 0):
        raise InvalidRequestError(
            f"parameter binary_data_size of {quoted(name)} must be a whole number of at least 0, "
            f"was {shown(count)}"
        )
    tensor = pb.ModelInferRequest.InferInputTensor(
        name=_text(name, f"name of {whose}"),
        datatype=_text(datatype, f"datatype of {whose}"),
        shape=shape,
        parameters=write_parameters(parameters, quoted(name), but="binary_data_size"),
    )
    return tensor, count


def _flatten(name: str, data: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
    """Return the elements of nested arrays, and how many there are on each level."""
    flat, sizes = data, [len(data)]
    while flat and isinstance(flat[0], list):
        if set(map(type, flat)) != {list} or len({*map(len, flat)}) != 1:
            raise InvalidRequestError(f"data of {name} must be nested evenly, level {len(sizes)} is not")
        sizes.append(len(flat[0]))
        flat = list(chain.from_iterable(flat))
    return flat, sizes


def _check_elements(name: str, flat: Sequence[Any], must: Set[type], words: str) -> None:
    if wrong := set(map(type, flat)) - must:
        place, value = next((at, value) for at, value in enumerate(flat) if type(value) in wrong)
        raise InvalidRequestError(f"data of {name} must be {words}, element {place} was {shown(value)}")


def _flag(parameters: Mapping[str, object], name: str, whose: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"parameter {name} of {whose} must be a boolean, was {shown(value)}")
    return value


def _text(text: str, what: str) -> str:
    """Return a string that has a form in UTF-8: JSON can also write halves of a character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(  # the text itself may be private
            f"{what} must be valid Unicode, was U+{ord(text[error.start]):04X} at character {error.start}"
        ) from None
    return text


# ---- Replies -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Written:
    """A reply as it is sent."""

    json: Iterator[bytes]
    """The JSON, in pieces that are made as they are taken."""
    elements: int
    """Elements of tensors in it: what it costs."""
    raw: Sequence[bytes | memoryview]
    """The binary tensors that follow."""


def write_reply(reply: InferReply, is_binary: IsBinary) -> Written:
    """Return how to write a reply. Its binary tensors are copied only if they are not contiguous."""
    tensors = list(zip(reply.outputs, reply.contents, strict=True))
    raw = [memory_of(content) for output, content in tensors if is_binary(output.spec.name)]
    elements = sum(math.prod(output.shape) for output, _ in tensors if not is_binary(output.spec.name))
    return Written(json=_pieces(reply, is_binary), elements=elements, raw=raw)


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


SAMPLE = {
    "model_name": "",
    "model_version": "",
    "outputs": [{"name": "", "datatype": "", "shape": [1], "data": [None]}],
}
"""The JSON of a reply without what only some have, for its schema. `data` may be of any type."""
