"""Whatever a caller gets wrong is refused by name, and the next good request succeeds."""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server.conftest import fails
from tests.waiting import until

from polyhead_proto import messages as pb

B, T, D = 2, 5, 16
X = np.arange(B * T * D, dtype=np.float32).reshape(B, T, D) / 100
IDS = np.full((B, T), 6, np.int64)
LENGTHS = np.array([5, 3], np.int32)


@dataclass(frozen=True)
class Tensor:
    """One input as it goes over the wire, right or wrong."""

    name: str = "x"
    datatype: str = "FP32"
    shape: tuple[int, ...] = (B, T, D)
    raw: bytes | None = X.tobytes()
    contents: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


def build(*tensors: Tensor, model: str = "tiny", **fields: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, **fields)
    for tensor in tensors:
        request.inputs.add(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=tensor.shape,
            contents=tensor.contents,
            parameters=tensor.parameters,
        )
        if tensor.raw is not None:
            request.raw_input_contents.append(tensor.raw)
    return request


def text_pair(*elements: bytes) -> Tensor:
    return replace(text(*elements), name="text_pair")


def text(*elements: bytes, count: int | None = None) -> Tensor:
    raw = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    return Tensor("text", "BYTES", (len(elements) if count is None else count,), raw)


def ids(array: Any = IDS) -> Tensor:
    return Tensor("input_ids", "INT64", np.shape(array), np.asarray(array, np.int64).tobytes())


def lengths(array: Any = LENGTHS, datatype: str = "INT32") -> Tensor:
    dtype = {"INT32": np.int32, "INT64": np.int64}[datatype]
    return Tensor("lengths", datatype, np.shape(array), np.asarray(array, dtype).tobytes())


def tokens(*tensors: Tensor, **fields: Any) -> pb.ModelInferRequest:
    return build(*tensors, model="tiny-tokens", **fields)


def attention(parameters: dict[str, Any], *, own: bool = True) -> pb.ModelInferRequest:
    """`attention.0` of the tiny family, with parameters of the output or of the request."""
    wrapped = {name: pb.InferParameter(**choice) for name, choice in parameters.items()}
    output = {"name": "attention.0", "parameters": wrapped if own else None}
    return build(Tensor(), model="tiny.attention", outputs=[output], parameters=None if own else wrapped)


def parameter(name: str, **choice: Any) -> pb.ModelInferRequest:
    return build(Tensor(), parameters={name: pb.InferParameter(**choice)})


INVALID = {
    # ---- Inputs: which ----
    "no input": (build(), r"input x is missing: it must be given as FP32 or FP16 \(B, T, D\)"),
    "unknown input": (build(Tensor("y")), "input 'y' is not known to tiny, which takes x, lengths"),
    "duplicate input": (build(Tensor(), Tensor()), "input x must be given once, was given twice"),
    "long unknown name": (build(Tensor("y" * 1_000_000)), r"input 'y{79}\\u2026' is not known"),
    "one input in shared memory": (
        build(
            replace(
                lengths(), raw=None, parameters={"shared_memory_region": pb.InferParameter(string_param="r")}
            ),
            Tensor(),
        ),
        "'shared_memory_region' of input 'lengths' is not known: shared memory is not offered, send",
    ),
    # ---- Datatypes ----
    "wrong datatype": (build(Tensor(datatype="INT64")), "x must have datatype FP32 or FP16, was 'INT64'"),
    # ---- Shapes ----
    "wrong rank": (build(Tensor(shape=(B * T, D))), r"x must have 3 dimensions \(B, T, D\), had 2"),
    "wrong D": (build(Tensor(shape=(B, D, T))), r"dimension 2 \(D\) of x must be 16, was 5"),
    "negative B": (build(Tensor(shape=(-1, T, D))), r"dimension 0 \(B\) of x must be at least 1, was -1"),
    "B = 0": (build(Tensor(shape=(0, T, D), raw=b"")), r"dimension 0 \(B\) of x must be at least 1, was 0"),
    "product over 2**63": (
        build(Tensor(shape=(2, 2**62, D))),
        f"x must have {2 * 2**62 * D * 4} bytes for FP32 .*, had {X.nbytes}",
    ),
    "product over 2**64 that wraps to the right size": (
        build(Tensor(shape=(1, 2**60 + B * T, D))),
        f"x must have .* bytes for FP32 .*, had {X.nbytes}",
    ),
    "B = 2**63 - 1": (build(Tensor(shape=(2**63 - 1, T, D))), f"must be at most 256, was {2**63 - 1}"),
    "T over the model's maximum": (
        tokens(ids(np.ones((1, 33)))),
        r"dimension 1 \(T\) of input_ids must be at most 32, was 33",
    ),
    # ---- Contents ----
    "too few bytes": (
        build(Tensor(raw=X.tobytes()[:-4])),
        f"x must have {X.nbytes} bytes .*, had {X.nbytes - 4}",
    ),
    "raw and typed": (
        build(Tensor(contents={"fp32_contents": X.ravel()})),
        "x must not have contents: the request has raw_input_contents",
    ),
    "raw for one, typed for the other": (
        build(Tensor(), Tensor("lengths", "INT32", (B,), None, {"int_contents": [5, 3]})),
        r"raw_input_contents must have one entry for each input \(2\), had 1",
    ),
    "more raw entries than inputs": (
        build(Tensor(), raw_input_contents=[X.tobytes()]),
        r"one entry for each input \(1\), had 2",
    ),
    "neither raw nor typed": (build(Tensor(raw=None)), rf"x must have {X.size} values for shape .*, had 0"),
    "values in the wrong field": (
        build(Tensor(raw=None, contents={"fp64_contents": X.ravel()})),
        "x must have its FP32 values in contents.fp32_contents, had fp64_contents",
    ),
    "typed FP16": (
        build(Tensor(datatype="FP16", raw=None, contents={"fp32_contents": X.ravel()})),
        "x must be in raw_input_contents: FP16 has no typed contents",
    ),
    # ---- Lengths ----
    "negative length": (
        build(Tensor(), lengths([5, -1])),
        r"lengths\[1\] must be between 0 and T \(5\), was -1",
    ),
    "length over T": (build(Tensor(), lengths([6, 1])), r"lengths\[0\] must be between 0 and T \(5\), was 6"),
    "length over T that would wrap": (
        build(Tensor(), lengths([2**32 + 1, 1], "INT64")),
        rf"lengths\[0\] must be between 0 and T \(5\), was {2**32 + 1}",
    ),
    "too many lengths": (
        build(Tensor(), lengths([1, 1, 1])),
        r"dimension 0 \(B\) of lengths must be 2, was 3",
    ),
    **{
        f"lengths of shape {list(np.shape(array))}": (
            build(Tensor(), lengths(array)),
            rf"lengths must have shape \(B\) or \(B, 1\), was {re.escape(str(list(np.shape(array))))}",
        )
        for array in ([[[1]], [[1]]], [[1, 1]], [[1, 1], [1, 1]], np.zeros((B, 0)), 1)
    },
    "lengths [B, 1] out of range": (
        build(Tensor(), lengths([[5], [6]])),
        r"lengths\[1\] must be between 0 and T \(5\), was 6",
    ),
    # ---- Masks ----
    "mask of another T": (
        build(Tensor(), Tensor("mask", "BOOL", (B, T, 4), bytes(B * T * 4)), model="tiny-masked"),
        r"dimension 2 \(T\) of mask must be 5, was 4",
    ),
    "mask that is no boolean": (
        build(Tensor(), Tensor("mask", "BOOL", (B, T, T), b"\2" * (B * T * T)), model="tiny-masked"),
        "mask must hold bytes of 0 or 1, one was 2",
    ),
    "mask where none is taken": (
        build(Tensor(), Tensor("mask", "BOOL", (B, T, T), bytes(B * T * T))),
        "input 'mask' is not known to tiny",
    ),
    # ---- Token ids ----
    "id over the vocabulary": (
        tokens(ids([[2, 32, 3]])),
        r"input_ids\[0, 1\] must be between 0 and 31, was 32",
    ),
    "negative id": (tokens(ids([[2, 6], [2, -1]])), r"input_ids\[1, 1\] must be between 0 and 31, was -1"),
    "token type out of range": (
        tokens(ids(), Tensor("token_type_ids", "INT64", (B, T), np.full((B, T), 2, np.int64).tobytes())),
        r"token_type_ids\[0, 0\] must be between 0 and 1, was 2",
    ),
    # ---- Text ----
    "text and ids": (tokens(text(b"a", b"a"), ids()), "input input_ids must not be given together with text"),
    "text and lengths": (
        tokens(text(b"a", b"a"), lengths()),
        "input lengths must not be given together with text",
    ),
    "a pair without text": (
        tokens(text_pair(b"a"), ids()),
        "input text_pair must be given together with input text",
    ),
    "fewer pairs than texts": (
        tokens(text(b"a", b"b"), text_pair(b"a")),
        r"dimension 0 \(B\) of text_pair must be 2, was 1",
    ),
    "a pair too long": (
        tokens(text(b"cat " * 7), text_pair(b"dog " * 8)),
        r"text\[0\] and text_pair\[0\] must be at most 16 tokens, was 18: shorten it or set .* truncate",
    ),
    "neither text nor ids": (tokens(lengths()), "either input text or input input_ids must be given"),
    "text for a float model": (build(text(b"a")), "input 'text' is not known to tiny"),
    "invalid UTF-8": (
        tokens(text(b"the cat", b"the \xff dog")),
        r"text\[1\] must be valid UTF-8, was 0xff at byte 4",
    ),
    "text too long": (
        tokens(text(b"cat", b"cat " * 20)),
        r"text\[1\] must be at most 16 tokens, was 22: shorten it or set the parameter truncate to true",
    ),
    "more texts than the shape": (
        tokens(text(b"a", b"b", count=1)),
        "text must have 1 elements for shape .*",
    ),
    "2**40 texts in 5 bytes": (tokens(text(b"a", count=2**40)), "must be at most 256"),
    "text cut short": (
        tokens(Tensor("text", "BYTES", (1,), struct.pack("<I", 2**31) + b"abc")),
        r"text\[0\] must have 2147483648 bytes as it says, 3 follow",
    ),
    "text of shape [2, 1, 1]": (
        tokens(Tensor("text", "BYTES", (2, 1, 1), bytes(8))),
        r"text must have shape \(B\) or \(B, 1\), was \[2, 1, 1\]",
    ),
    "no text": (tokens(text()), r"dimension 0 \(B\) of text must be at least 1, was 0"),
    # ---- Outputs ----
    "unknown output": (
        build(Tensor(), outputs=[{"name": "outputs"}]),
        "output 'outputs' is not known to tiny, which gives output",
    ),
    "attention of the fast model": (
        build(Tensor(), outputs=[{"name": "attention.0"}]),
        "which gives output; it is an output of tiny.attention",
    ),
    "a layer that is not there": (
        build(Tensor(), model="tiny.attention", outputs=[{"name": "attention.2"}]),
        "output 'attention.2' is not known",
    ),
    "duplicate output": (
        build(Tensor(), outputs=[{"name": "output"}, {"name": "output"}]),
        "output output must be requested once, was requested twice",
    ),
    # ---- Parameters ----
    "unknown parameter": (
        parameter("colour", string_param="red"),
        "parameter 'colour' of the request is not known; there are timeout, priority, parts, heads, queries",
    ),
    "unknown parameter of an output": (
        attention({"timeout": {"int64_param": 1}}),
        "'timeout' of output attention.0 is not known; there are heads, queries, layers, top, dimensions",
    ),
    "an unknown prompt": (
        tokens(text(b"a"), parameters={"prompt_name": pb.InferParameter(string_param="qery\n")}),
        r"parameter prompt_name of the request must be one of passage, query; or empty for no prompt, "
        r"was 'qery\\n'",
    ),
    "a prompt that is no string": (
        tokens(text(b"a"), parameters={"prompt_name": pb.InferParameter(bool_param=True)}),
        r"parameter prompt_name of the request must be a string, was True \(bool_param\)",
    ),
    "a prompt for token ids": (
        tokens(ids(), parameters={"prompt_name": pb.InferParameter(string_param="query")}),
        "parameter prompt_name of the request goes with text: put a prompt's tokens before token ids",
    ),
    "truncate that is no boolean": (
        tokens(text(b"a"), parameters={"truncate": pb.InferParameter(int64_param=1)}),
        r"parameter truncate of the request must be a boolean, was 1 \(int64_param\)",
    ),
    "negative timeout": (parameter("timeout", int64_param=-1), "parameter timeout .* at least 0, was -1"),
    "sequence": (
        parameter("sequence_id", int64_param=7),
        "parameter sequence_id .* must be 0, empty or false",
    ),
    "classification": (
        attention({"classification": {"int64_param": 3}}),
        r"parameter 'classification' of output attention.0 is not known \(class_count\): .* sort the logits",
    ),
    "shared memory": (
        attention({"shared_memory_region": {"string_param": "r"}}),
        "'shared_memory_region' of output attention.0 is not known: shared memory is not offered",
    ),
    # ---- Parameters that clients of other servers add ----
    "binary_data_size of another size": (
        build(Tensor(parameters={"binary_data_size": pb.InferParameter(int64_param=X.nbytes - 1)})),
        f"parameter binary_data_size of x must be the {X.nbytes} bytes of its raw content, was 639",
    ),
    "binary_data_size of typed contents": (
        build(
            Tensor(
                raw=None,
                contents={"fp32_contents": X.ravel().tolist()},
                parameters={"binary_data_size": pb.InferParameter(int64_param=X.nbytes)},
            )
        ),
        f"parameter binary_data_size of x must be left out, was {X.nbytes}: its contents are not raw",
    ),
    "binary_data_size of the request": (
        parameter("binary_data_size", int64_param=X.nbytes),
        "parameter 'binary_data_size' of the request is not known",
    ),
    "outputs that are not raw": (
        parameter("binary_data_output", bool_param=False),
        r"parameter binary_data_output of the request must be true or left out, was False \(bool_param\): "
        "outputs are always in raw_output_contents",
    ),
    "an output that is not raw": (
        attention({"binary_data": {"bool_param": False}}),
        "parameter binary_data of output attention.0 must be true or left out, was False",
    ),
    "text in base64": (
        tokens(replace(text(b"YQ=="), parameters={"content_type": pb.InferParameter(string_param="base64")})),
        "parameter content_type of text must be np or pd or str, was 'base64'",
    ),
    "vectors for a request of strings": (
        parameter("content_type", string_param="str"),
        "parameter content_type of the request must be np or pd, was 'str'",
    ),
    "head out of range": (
        attention({"heads": {"string_param": "0,4"}}),
        r"parameter heads of output attention.0 must be between 0 and H-1 \(3\), was 4",
    ),
    "head twice": (attention({"heads": {"string_param": "1,0:2"}}), "must name each index once, has 1 twice"),
    "mistyped heads": (
        attention({"heads": {"bool_param": True}}),
        r"parameter heads of output attention.0 must be a string .*, was True \(bool_param\)",
    ),
    "query out of range": (
        attention({"queries": {"string_param": "0:6"}}),
        r"parameter queries of output attention.0 must be between 0 and T-1 \(4\), was 5",
    ),
    "unknown dtype": (
        attention({"dtype": {"string_param": "INT4"}}),
        "parameter dtype of output attention.0 must be FP32, FP16, UINT8, was 'INT4'",
    ),
    "heads of an output that has none": (
        build(
            Tensor(),
            outputs=[{"name": "output", "parameters": {"heads": pb.InferParameter(string_param="0")}}],
        ),
        "parameter heads does not apply to output output",
    ),
    "UINT8 of an output that is no weight": (
        build(
            Tensor(),
            outputs=[{"name": "output", "parameters": {"dtype": pb.InferParameter(string_param="UINT8")}}],
        ),
        "parameter dtype UINT8 does not apply to output output",
    ),
    "heads where no output has any": (
        parameter("heads", string_param="0"),
        "parameter heads of the request does not apply to any requested output",
    ),
    # ---- Versions and messages ----
    "version in letters": (
        build(Tensor(), model_version="abc"),
        "model_version must be a number without sign or leading zeros, such as 1, or empty for the newest, "
        "was 'abc'",
    ),
    "id of a megabyte": (build(Tensor(), id="i" * 2**20), "id must have at most 1024 bytes, had 1048576"),
    "no message": (
        b"\xff\xff\xff",
        "the request must be a inference.ModelInferRequest message .*, was 3 bytes",
    ),
    "half a million empty raw contents": (
        build(Tensor()).SerializeToString() + b"\x3a\x00" * 500_000,
        "the request must be a .* of at most 4096 fields",
    ),
    "model name that is no UTF-8": (b"\x0a\x01\xff", "message of .* with text in UTF-8"),
}

NOT_FOUND = {
    "unknown model": (
        build(Tensor(), model="other"),
        "model 'other' is not served here; there are tiny, tiny-masked",
    ),
    "path as a model": (build(Tensor(), model="../x"), r"model '\.\./x' is not served here"),
    "model name of a megabyte": (build(Tensor(), model="é" * 500_000), "is not served here"),
    "unknown version": (build(Tensor(), model_version="2"), "model tiny has no version 2; it has 1"),
}

TOO_LARGE = {
    "too many tokens": (
        build(Tensor(shape=(1, 40_000, D), raw=bytes(40_000 * D * 4))),
        r"a request must have at most 32768 tokens, had 40000 \(B 1 × T 40000",
    ),
    "too much memory": (
        build(Tensor(shape=(1, 12_000, D), raw=bytes(12_000 * D * 4)), model="tiny.attention"),
        r"computing B 1 × T 12000 needs about \d+ bytes of memory, the limit is 2147483648: .* fast model",
    ),
    "too large a reply": (
        build(Tensor(shape=(1, 3_000, D), raw=bytes(3_000 * D * 4)), model="tiny.attention"),
        r"the reply needs 2882\d+ bytes, the limit is 67108864: ask for .*parameters layers, heads",
    ),
    "too much text in pairs": (
        tokens(text(b"cat " * 600_000), text_pair(b"cat " * 600_000)),
        "text must have at most 4194304 bytes in one request, had 4800000",
    ),
    "too much text": (
        tokens(text(b"cat " * 1_100_000), parameters={"truncate": pb.InferParameter(bool_param=True)}),
        "text must have at most 4194304 bytes in one request, had 4400000",
    ),
    "too large a request": (
        build(Tensor(shape=(1, 2**20 + 1, D), raw=bytes((2**20 + 1) * D * 4))),
        "larger than max",
    ),
}

CASES = [
    pytest.param(code, payload, message, id=f"{code.name}: {name}")
    for code, table in (
        (grpc.StatusCode.INVALID_ARGUMENT, INVALID),
        (grpc.StatusCode.NOT_FOUND, NOT_FOUND),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE),
    )
    for name, (payload, message) in table.items()
]


@pytest.mark.parametrize(("code", "payload", "message"), CASES)
def test_bad_input_is_refused_by_name(
    server: Any, code: grpc.StatusCode, payload: Any, message: str, good: Callable[[], None]
) -> None:
    with fails(code, message) as caught:
        server.call("ModelInfer", payload)

    assert len(caught.value.details() or "") <= 1500
    good()


def test_requests_of_very_many_fields_are_refused_and_not_kept(server: Any, good: Callable[[], None]) -> None:
    head = build(Tensor()).SerializeToString()
    for field in (b"\x3a\x00", b"\x32\x00"):
        with fails(grpc.StatusCode.INVALID_ARGUMENT, "at most 4096 fields"):
            server.call("ModelInfer", head + field * 4_000_000)

    until(lambda: server.held == 0)
    good()


@pytest.fixture
def good(server: Any) -> Callable[[], None]:
    """Makes a good request of each kind, and checks that it is answered."""

    def check() -> None:
        assert server.infer("tiny", {"x": X, "lengths": LENGTHS})["output"].shape == (B, T, D)
        assert server.infer("tiny-tokens", {"text": ["the cat"]})["pooled"].shape == (1, D)

    return check


ABSENT = [("other", ""), ("../x", ""), ("", ""), ("tiny", "7"), ("other", "abc")]
MALFORMED = [("tiny", "abc"), ("tiny", "01"), ("tiny", "-1")]


@pytest.mark.parametrize(("model", "version"), ABSENT)
def test_what_is_not_there_is_not_ready(server: Any, model: str, version: str) -> None:
    assert server.call("ModelReady", pb.ModelReadyRequest(name=model, version=version)).ready is False


@pytest.mark.parametrize(("model", "version"), MALFORMED)
def test_readiness_of_what_is_no_version_is_refused(server: Any, model: str, version: str) -> None:
    with fails(grpc.StatusCode.INVALID_ARGUMENT):
        server.call("ModelReady", pb.ModelReadyRequest(name=model, version=version))


@pytest.mark.parametrize("name", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
@pytest.mark.parametrize(
    ("model", "version", "code"),
    [
        *((*one, grpc.StatusCode.NOT_FOUND) for one in ABSENT if one[0]),
        *((*one, grpc.StatusCode.INVALID_ARGUMENT) for one in MALFORMED),
    ],
)
def test_what_is_not_there_is_not_found(
    server: Any, name: str, model: str, version: str, code: grpc.StatusCode
) -> None:
    request = getattr(pb, f"{name}Request")(name=model, version=version)

    with fails(code):
        server.call(name, request)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RepositoryModelLoad", "models are not loaded or unloaded by call here"),
        (
            "SystemSharedMemoryRegister",
            "'SystemSharedMemoryRegister' is not offered: send the tensors in the",
        ),
        ("TraceSetting", "procedure 'TraceSetting' is not offered; there are ServerLive, "),
    ],
)
def test_an_unknown_procedure_is_unimplemented(server: Any, name: str, message: str) -> None:
    method = server.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")

    with fails(grpc.StatusCode.UNIMPLEMENTED, message):
        method(b"", timeout=60)
