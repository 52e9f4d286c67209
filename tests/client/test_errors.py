"""Every failure of a call is one of ours, over both transports."""

import asyncio
import copy
import pickle
import re
import threading
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
from tests.client.conftest import Connect, FakeServer

import polyhead_client
from polyhead_client import (
    AccessDenied,
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    PolyheadError,
    ServerError,
    TooLarge,
    Unavailable,
    Unsupported,
)
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

EXPECTED = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooLarge,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
    grpc.StatusCode.PERMISSION_DENIED: AccessDenied,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}

CALLS = {
    "ModelInfer": lambda client: client.encode(np.zeros((1, 2, 4), np.float32), model="vectors"),
    "ModelMetadata": lambda client: client.model("vectors"),
    "ServerMetadata": lambda client: client.metadata(),
    "ModelStatistics": lambda client: client.statistics(),
    "RepositoryIndex": lambda client: client.models(),
    "ServerLive": lambda client: client.live(),
    "ServerReady": lambda client: client.ready(),
    "ModelReady": lambda client: client.ready("vectors"),
}


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK], ids=lambda c: c.name
)
def test_every_status_becomes_an_error_of_ours(
    client: Client, fake: FakeServer, code: grpc.StatusCode
) -> None:
    fake.fail("ModelStatistics", code)

    with pytest.raises(PolyheadError) as caught:
        client.statistics()

    assert type(caught.value) is EXPECTED.get(code, ServerError)
    assert caught.value.code is code
    assert caught.value.details == "what went wrong"
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    assert caught.value.request_id == fake.calls[-1][2]["x-request-id"]


@pytest.mark.parametrize("rpc", CALLS)
@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE], ids=lambda c: c.name
)
def test_no_error_of_grpc_escapes_from_any_call(
    connect: Connect, fake: FakeServer, rpc: str, code: grpc.StatusCode
) -> None:
    client = connect(fake.target, options=[("grpc.enable_retries", 0)])
    fake.fail(rpc, code)
    probes = {"ServerLive", "ServerReady", "ModelReady"}

    if rpc in probes and code is grpc.StatusCode.UNAVAILABLE:
        assert CALLS[rpc](client) is False
    else:
        with pytest.raises(EXPECTED.get(code, ServerError)):
            CALLS[rpc](client)


@pytest.mark.parametrize("rpc", CALLS)
@pytest.mark.parametrize("reply", [b"\xff\xff\xff", b"\x0a\xff"])
def test_a_reply_that_is_no_message_is_the_servers_fault(
    client: Client, fake: FakeServer, rpc: str, reply: bytes
) -> None:
    fake.answers[rpc] = lambda *_: reply

    with pytest.raises(ServerError, match=f"malformed reply: it is no {RPCS[rpc].response.DESCRIPTOR.name}"):
        CALLS[rpc](client)


def test_the_other_nature_of_an_error_can_be_caught(client: Client, fake: FakeServer) -> None:
    fake.fail("ModelStatistics", grpc.StatusCode.INVALID_ARGUMENT)
    with pytest.raises(ValueError, match="what went wrong"):
        client.statistics()

    fake.fail("ModelStatistics", grpc.StatusCode.DEADLINE_EXCEEDED)
    with pytest.raises(TimeoutError):
        client.statistics()


def test_the_servers_own_name_for_a_call_is_kept(client: Client, fake: FakeServer) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata((("x-request-id", "abc"),))
        context.abort(grpc.StatusCode.INTERNAL, "internal error, request abc")

    fake.answers["ModelStatistics"] = answer

    with pytest.raises(ServerError) as caught:
        client.statistics()

    assert caught.value.request_id == "abc"


def test_unavailable_is_tried_again_until_it_works(client: Client, fake: FakeServer) -> None:
    fake.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE, times=2)

    assert client.encode("a", model="words").model == "words"
    assert fake.count("ModelInfer") == 3


def test_large_requests_are_tried_again_too(client: Client, fake: FakeServer) -> None:
    fake.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE, times=1)

    client.encode(np.zeros((4, 1 << 16, 4), np.float32), model="vectors")

    assert fake.count("ModelInfer") == 2


def test_retries_end(client: Client, fake: FakeServer) -> None:
    fake.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE, "queue full")

    with pytest.raises(Unavailable, match=f"{fake.target} is unavailable: queue full"):
        client.encode("a", model="words")
    assert fake.count("ModelInfer") == 4


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED], ids=lambda c: c.name
)
def test_nothing_else_is_tried_again(client: Client, fake: FakeServer, code: grpc.StatusCode) -> None:
    fake.fail("ModelInfer", code, times=1)

    with pytest.raises(PolyheadError):
        client.encode("a", model="words")
    assert fake.count("ModelInfer") == 1


def test_a_server_that_does_not_answer_is_given_up(client: Client, fake: FakeServer) -> None:
    def never(request: Any, context: grpc.ServicerContext) -> Any:
        done = threading.Event()
        context.add_callback(done.set)
        done.wait()

    fake.answers["ModelInfer"] = never
    client.model("words")

    with pytest.raises(DeadlineExceeded, match=rf"{fake.target} did not answer ModelInfer within 0\.05 s"):
        client.encode("a", model="words", timeout=0.05)


def test_a_closed_client_says_so(client: Client, connect: Connect, fake: FakeServer) -> None:
    client = Client(fake.target)
    client.close()

    with pytest.raises(RuntimeError, match="the client is closed"):
        client.live()


def test_a_call_of_a_client_that_is_being_closed_was_cancelled(fake: FakeServer) -> None:
    channel = grpc.insecure_channel(fake.target)

    def unary_unary(path: str) -> Any:
        def procedure(*args: Any, **options: Any) -> Any:
            client.close()
            channel.close()
            return channel.unary_unary(path)(*args, **options)

        return procedure

    client = Client(fake.target, channel=cast(grpc.Channel, SimpleNamespace(unary_unary=unary_unary)))
    with pytest.raises(Cancelled, match="the client was closed before the call was sent"):
        client.metadata()


def test_so_was_one_of_asyncio(fake: FakeServer) -> None:
    async def run() -> None:
        channel = grpc.aio.insecure_channel(fake.target)

        def unary_unary(path: str) -> Any:
            async def procedure(*args: Any, **options: Any) -> Any:
                await client.close()
                await channel.close()
                return await channel.unary_unary(path)(*args, **options)

            return procedure

        client = AsyncClient(
            fake.target, channel=cast(grpc.aio.Channel, SimpleNamespace(unary_unary=unary_unary))
        )
        with pytest.raises(Cancelled, match="the client was closed before the call was sent"):
            await client.metadata()

    asyncio.run(run())


def test_clients_cannot_be_pickled_or_copied(fake: FakeServer) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(TypeError, match="a client holds a connection, and cannot be pickled or copied"):
            pickle.dumps(kind(fake.target))
        with pytest.raises(TypeError, match="a client holds a connection, and cannot be pickled or copied"):
            copy.copy(kind(fake.target))


def test_an_event_loop_that_is_not_the_first_is_refused(fake: FakeServer) -> None:
    client = AsyncClient(fake.target)
    asyncio.run(client.metadata())

    with pytest.raises(RuntimeError, match="must be used in the event loop of its first call"):
        asyncio.run(client.metadata())
    asyncio.run(client.close())


def test_a_model_that_vanished_is_looked_up_anew(client: Client, fake: FakeServer) -> None:
    client.encode("a", model="words")
    fake.fail("ModelInfer", grpc.StatusCode.NOT_FOUND, times=1)

    with pytest.raises(NotFound):
        client.encode("a", model="words")
    client.encode("a", model="words")

    assert fake.count("ModelMetadata") == 2


def reply(**changes: Any) -> pb.ModelInferResponse:
    """A right reply to `encode(zeros [1, 2, 4], attention=[0], heads=[1])`, with changes to its outputs."""
    message = pb.ModelInferResponse(model_name="vectors.attention", model_version="1")
    outputs = {
        "output": ("FP32", [1, 2, 4], bytes(32)),
        "attention.0": ("FP32", [1, 1, 2, 2], bytes(16)),
    } | changes
    for name, (datatype, shape, raw) in outputs.items():
        message.outputs.add(name=name.replace("attention_0", "attention.0"), datatype=datatype, shape=shape)
        message.raw_output_contents.append(raw)
    return message


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (pb.ModelInferResponse(), "output is missing, there are []"),
        (reply(attention_0=("FP32", [1, 1, 2, 2], bytes(16))), "an output comes twice"),
        (
            reply(output=("FP32", [1, 2, 4], bytes(31))),
            "must have 32 bytes for FP32 [1, 2, 4], had 31",
        ),
        (
            reply(output=("FP32", [1, 2, 1 << 62], bytes(32))),
            "output must have 36893488147419103232 bytes for FP32 [1, 2, 4611686018427387904], had 32",
        ),
        (
            reply(output=("FP32", [1, 2, -4], bytes(32))),
            "must have -32 bytes for FP32 [1, 2, -4], had 32",
        ),
        (reply(output=("INT64", [1, 2, 2], bytes(32))), "output must be FP32 or FP16, was INT64"),
        (reply(output=("FP32", [2, 2, 4], bytes(64))), "output must be [B=1, T=2, D=4], was [2, 2, 4]"),
        (reply(output=("FP32", [1, 8], bytes(32))), "output must be [B=1, T=2, D], was [1, 8]"),
        (
            reply(**{"attention.0": ("FP32", [1, 3, 2, 2], bytes(48))}),
            "attention.0 must be [B=1, 1, T=2, T=2], was [1, 3, 2, 2]",
        ),
        (
            reply(**{"attention.0": ("BYTES", [1, 1, 2, 2], bytes(16))}),
            "must be FP32 or FP16 or UINT8, was BYTES",
        ),
    ],
)
def test_a_reply_that_breaks_the_contract_is_the_servers_fault(
    client: Client, fake: FakeServer, message: pb.ModelInferResponse, complaint: str
) -> None:
    fake.answers["ModelInfer"] = lambda *_: message

    with pytest.raises(ServerError, match=re.escape(complaint)) as caught:
        client.encode(np.zeros((1, 2, 4), np.float32), model="vectors", attention=[0], heads=[1])
    assert str(caught.value).startswith("malformed reply: ")


def test_outputs_without_contents_are_the_servers_fault(client: Client, fake: FakeServer) -> None:
    message = reply()
    del message.raw_output_contents[-1]
    fake.answers["ModelInfer"] = lambda *_: message

    with pytest.raises(ServerError, match="malformed reply: 2 outputs with 1 contents"):
        client.encode(np.zeros((1, 2, 4), np.float32), model="vectors", attention=[0], heads=[1])


@pytest.mark.parametrize(
    ("tokens", "shape", "lengths", "complaint"),
    [
        (
            b"\x01\x00\x00\x00a",
            [1, 2],
            [1],
            "tokens must have 2 elements for shape [1, 2], 5 bytes hold",
        ),
        (b"\xff\xff\xff\xff", [1, 1], [1], "tokens[0] must have 4294967295 bytes as it says, 0 follow"),
        (b"\x01\x00", [1, 1], [1], "tokens must have 1 elements for shape [1, 1], 2 bytes hold fewer"),
        (bytes(8), [1, 1], [1], "tokens must have 1 elements for shape [1, 1], had 1 and 4 bytes more"),
        (bytes(4), [1], [1], "tokens must be [B=1, T], was [1]"),
        (b"", [1 << 40, 0], [1], "tokens must be [B=1, T=0], was [1099511627776, 0]"),
        (bytes(4), [1, 1], [2], "lengths [2] for 1 tokens"),
        (bytes(4), [1, 1], [-1], "lengths [-1] for 1 tokens"),
    ],
)
def test_wrong_tokens_are_the_servers_fault(
    client: Client, fake: FakeServer, tokens: bytes, shape: list[int], lengths: list[int], complaint: str
) -> None:
    message = pb.ModelInferResponse(model_name="words", model_version="1")
    message.outputs.add(name="tokens", datatype="BYTES", shape=shape)
    message.outputs.add(name="lengths", datatype="INT32", shape=[1])
    message.raw_output_contents.extend([tokens, np.array(lengths, "<i4").tobytes()])
    fake.answers["ModelInfer"] = lambda *_: message

    with pytest.raises(ServerError, match=re.escape(f"malformed reply: {complaint}")):
        client.encode("a", model="words", output=False, pooled=False)


def test_inputs_that_the_model_does_not_take_are_refused(client: Client) -> None:
    with pytest.raises(
        InvalidRequest, match=re.escape("inputs of vectors must be vectors (floats), was texts")
    ):
        client.encode("a", model="vectors")
    with pytest.raises(
        InvalidRequest,
        match=re.escape("inputs of words must be texts or token ids (integers), was vectors (floats)"),
    ):
        client.encode(np.zeros((1, 2, 4)), model="words")
    with pytest.raises(
        InvalidRequest, match="mask is no input of words, which takes input_ids, token_type_ids, text"
    ):
        client.encode([1, 2], model="words", mask=np.ones((2, 2), np.bool_))


def test_every_error_is_in_the_drawn_tree() -> None:
    tree = polyhead_client.errors.__doc__ or ""
    errors = {
        name
        for name, value in vars(polyhead_client.errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }

    assert errors == set(re.findall(r"(?m)^(?:[├└]── )?([A-Z]\w+)", tree.split("```")[1]))
    for name in errors:
        assert issubclass(getattr(polyhead_client, name), PolyheadError)
