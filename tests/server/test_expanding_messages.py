"""No message within the limits takes many times its size in memory, whichever of its fields is huge."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests.repeated_fields import CASES, is_varint, message, one, sized
from tests.server.conftest import fails
from tests.servers import ServerProcess

from polyhead_proto import RPCS
from polyhead_proto import messages as pb

HUGE = 8 * 2**20
"""Bytes of a message."""

ROOM = 12 * HUGE
"""What the server may grow by: the message is there thrice for a moment. Unchecked, it is 16 times."""

REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.fixture(scope="module")
def process(repository: Path) -> Iterator[ServerProcess]:
    """A server whose memory is its own."""
    server = ServerProcess(
        *("--models", str(repository), "--port", "0", "--http-port", "off", "--device", "cpu")
    )
    try:
        server.until("serving .* on ")
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def channel(process: ServerProcess) -> Iterator[grpc.Channel]:
    """A channel to it."""
    with grpc.insecure_channel(process.until(r"listening on (\S+);")[1]) as one:
        yield one


def most_memory(process: ServerProcess) -> int:
    """The most bytes that the server has had in memory."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def refusal(channel: grpc.Channel, procedure: str, payload: bytes) -> str:
    """Why a message is refused."""
    options: dict[str, Any] = {"timeout": 240}
    path = RPCS[procedure].path
    if procedure == "ModelStreamInfer":
        stream: Any = channel.stream_stream(path)
        (reply,) = stream(iter((payload,)), **options)
        return pb.ModelStreamInferResponse.FromString(reply).error_message
    unary: Any = channel.unary_unary(path)
    with pytest.raises(grpc.RpcError) as caught:
        unary(payload, **options)
    assert caught.value.code() in REFUSED
    return str(caught.value.details())


@pytest.mark.skipif(not psutil.LINUX, reason="reads /proc")
@pytest.mark.parametrize(
    "field",
    [
        pytest.param(name, marks=pytest.mark.slow if "Stream" in name else ())  # the same reader
        for name in CASES
    ],
)
def test_a_huge_field_is_refused_before_it_is_read(
    field: str, process: ServerProcess, channel: grpc.Channel
) -> None:
    """With each element a field, and packed where they are numbers."""
    procedure = field.partition(":")[0]
    _, path = CASES[field]
    element = one(path[-1])
    contents = [element * (HUGE // len(element))]
    if is_varint(path[-1]):
        contents.append(sized(path[-1].number, b"\x01" * HUGE))
    before = most_memory(process)

    for content in contents:
        said = refusal(channel, procedure, message(path, content))
        assert "at most" in said, said
        assert "dimensions" not in said

    assert most_memory(process) - before < ROOM


@pytest.mark.parametrize("name", [name for name in RPCS if "Infer" not in name])
def test_what_takes_no_tensors_takes_no_large_message(name: str, channel: grpc.Channel) -> None:
    """It is read on the event loop, whatever it holds: text as well."""
    assert "must have at most 16384 bytes, had 1000003" in refusal(channel, name, sized(1, bytes(999_999)))


@pytest.mark.parametrize(
    "path", ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
)
def test_neither_do_other_services(path: str, channel: grpc.Channel) -> None:
    call: Any = channel.stream_stream(path) if "Reflection" in path else channel.unary_unary(path)
    payload = sized(3 if "Reflection" in path else 1, bytes(999_999))
    with fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "must have at most 16384 bytes"):
        list(call(iter((payload,)), timeout=240)) if "Reflection" in path else call(payload, timeout=240)
