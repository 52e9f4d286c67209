"""A real server on a free port, in a thread of its own, and the smallest client that can speak to it."""

import asyncio
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tests.clock import SkippingLoop
from tests.server.counting import Counts
from tests.servers import InThread, quick_settings, serving
from tests.waiting import reached

import polyhead_server.process
from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_server import GrpcServer, Runtime, Settings
from polyhead_server.engine.device import CPU, Device
from polyhead_server.engine.devices import choose_device
from polyhead_server.engine.engine import Engine
from polyhead_server.http.listener import announce
from polyhead_server.observability.logs import LOGGER

DATATYPES = {"bool": "BOOL", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32"}

Serve = Callable[..., "Running"]
Value = NDArray[Any] | Sequence[str]


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Leave no test the handlers and the level that another one configured."""
    state = (LOGGER.handlers[:], LOGGER.propagate, LOGGER.level)
    last_resort = logging.lastResort
    yield
    LOGGER.handlers[:], LOGGER.propagate = state[0], state[1]
    LOGGER.setLevel(state[2])
    logging.lastResort = last_resort


@dataclass(frozen=True)
class Running:
    """A server that runs, and a channel to it."""

    one: InThread
    channel: grpc.Channel

    @property
    def counted(self) -> Counts:
        """What it has counted."""
        return Counts(self.runtime.registry.metrics)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.one.address

    @property
    def server(self) -> GrpcServer:
        """The server itself."""
        return self.one.server

    @property
    def runtime(self) -> Runtime:
        """What the server serves."""
        return self.one.server.runtime

    @property
    def held(self) -> int:
        """The bytes that it holds for its callers."""
        return self.runtime.budget.bytes

    @property
    def loop(self) -> SkippingLoop:
        """Where it runs."""
        return self.one.loop

    def method(self, name: str) -> Any:
        """A remote procedure; see `procedure`."""
        return procedure(self.channel, name)

    def call(self, name: str, request: Any = None, **options: Any) -> Any:
        """Calls a remote procedure; without a request, with an empty one."""
        payload = RPCS[name].request() if request is None else request
        return self.method(name)(payload, **({"timeout": 120} | options))

    def stream(self, requests: Iterator[Any], **options: Any) -> Any:
        """Begins a stream; its replies."""
        return self.method("ModelStreamInfer")(requests, **({"timeout": 120} | options))

    def infer(self, model: str, inputs: Mapping[str, Value], **options: Any) -> "Result":
        """Infers; see `request` for the options."""
        return Result(self.call("ModelInfer", self.request(model, inputs, **options)))

    def rejected(self, model: str, inputs: Mapping[str, Any], **options: Any) -> str:
        """What it says of a request that it rejects as wrong."""
        with fails(grpc.StatusCode.INVALID_ARGUMENT) as caught:
            self.infer(model, inputs, **options)
        return str(caught.value.details())

    def drain(self, seconds: float) -> bool:
        """Drains the server from another thread."""
        return self.one.drain(seconds)

    @staticmethod
    def request(
        model: str,
        inputs: Mapping[str, Value],
        *,
        outputs: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> pb.ModelInferRequest:
        """Builds a request.

        Args:
            model: The model's name.
            inputs: Arrays, or texts.
            outputs: Names, or names with parameters.
            parameters: The request's own.
            fields: Other fields of the message.
        """
        request = pb.ModelInferRequest(model_name=model, parameters=wrap(parameters or {}), **fields)
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                request.inputs.add(name=name, datatype=DATATYPES[value.dtype.name], shape=value.shape)
                request.raw_input_contents.append(value.tobytes())
            else:
                request.inputs.add(name=name, datatype="BYTES", shape=[len(value)])
                elements = [text.encode() for text in value]
                request.raw_input_contents.append(
                    b"".join(struct.pack("<I", len(element)) + element for element in elements)
                )
        for name in outputs:
            chosen = outputs[name] if isinstance(outputs, Mapping) else {}
            request.outputs.add(name=name, parameters=wrap(chosen))
        return request


def procedure(channel: grpc.Channel, name: str) -> Any:
    """A remote procedure, which takes messages or their bytes."""

    def serialised(message: Any) -> bytes:
        return message if isinstance(message, bytes) else bytes(message.SerializeToString())

    rpc = RPCS[name]
    make: Any = channel.stream_stream if "Stream" in name else channel.unary_unary
    return make(rpc.path, serialised, rpc.response.FromString)


class Served:
    """`serve`, the whole process's work, as a task of this event loop."""

    server: GrpcServer
    address: str
    http_port: int

    def __init__(self, models: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        def create(*arguments: Any, **options: Any) -> GrpcServer:
            self.server = GrpcServer(*arguments, **options)
            self.address = f"127.0.0.1:{self.server.port}"
            return self.server

        def announce_it(settings: Settings, port: int | None) -> None:
            self.http_port = port or 0
            announce(settings, port)

        monkeypatch.setattr(polyhead_server.process, "GrpcServer", create)
        monkeypatch.setattr(polyhead_server.process, "announce", announce_it)
        self.process = asyncio.create_task(polyhead_server.process.serve(quick_settings(models, **settings)))

    async def until_ready(self) -> None:
        """Waits until the models are loaded. Raises the error with which the process ended before that."""

        def ready() -> bool:
            return hasattr(self, "server") and self.server.runtime.lifecycle.ready

        await reached(lambda: ready() or self.process.done())
        if not ready():
            raise AssertionError(f"the process ended with {self.process.result()}")


class Result:
    """A reply, with its outputs as arrays."""

    def __init__(self, reply: pb.ModelInferResponse) -> None:
        self.reply = reply
        self.timings = {name: parameter.int64_param for name, parameter in reply.parameters.items()}
        self.datatypes = {output.name: output.datatype for output in reply.outputs}
        self.outputs: dict[str, Any] = {}
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
            if output.datatype == "BYTES":
                self.outputs[output.name] = split_strings(raw, tuple(output.shape))
            else:
                self.outputs[output.name] = np.frombuffer(raw, DTYPES[output.datatype]).reshape(output.shape)

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]


def split_strings(raw: bytes, shape: tuple[int, ...]) -> list[list[str]]:
    """Reads a raw BYTES tensor (B, T)."""
    texts, position = [], 0
    while position < len(raw):
        (length,) = struct.unpack_from("<I", raw, position)
        texts.append(raw[position + 4 : position + 4 + length].decode())
        position += 4 + length
    rows, columns = shape
    assert len(texts) == rows * columns
    return [texts[row * columns : (row + 1) * columns] for row in range(rows)]


def wrap(values: Mapping[str, Any]) -> dict[str, pb.InferParameter]:
    """Parameters from plain values; an `InferParameter` stays as it is."""
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {
        name: value
        if isinstance(value, pb.InferParameter)
        else pb.InferParameter(**{fields[type(value)]: value})
        for name, value in values.items()
    }


@contextmanager
def fails(code: grpc.StatusCode, message: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expects a call to fail with a status, and with a message in which a pattern is found."""
    with pytest.raises(grpc.RpcError, match=message) as caught:
        yield caught
    assert caught.value.code() is code


def everything_on(provider: str) -> list[Any]:
    """A session's record of where its nodes are: on this provider."""
    node = SimpleNamespace(name="planted", op_type="MatMul")
    return [SimpleNamespace(ep_name=provider, get_nodes=lambda: [node])]


def pretend(
    monkeypatch: pytest.MonkeyPatch, provider: str, record: Sequence[Any] | None = None
) -> list[list[Any]]:
    """Has sessions compute on the CPU, and say that they are on another provider.

    Args:
        monkeypatch: For onnxruntime.
        provider: Which.
        record: Where they say that their nodes are; there, if it is not given.

    Returns:
        The providers that each session asked for.
    """
    asked: list[list[Any]] = []

    class Session(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: ort.SessionOptions, providers: list[Any], **_: object) -> None:
            super().__init__(path, options, [CPU])
            asked.append(providers)

        def get_providers(self) -> list[str]:
            return [provider, CPU]

        def get_provider_graph_assignment_info(self) -> Sequence[Any]:
            return everything_on(provider) if record is None else record

    monkeypatch.setattr(ort, "InferenceSession", Session)
    return asked


@contextmanager
def running(settings: Settings, *, wait: bool = True) -> Iterator[Running]:
    """Runs a server until the end of the block, with a channel to it; see `serving`."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with serving(settings, wait=wait) as one, grpc.insecure_channel(one.address, options=options) as channel:
        yield Running(one, channel)


@pytest.fixture
def serve(repository: Path, device: str) -> Iterator[Serve]:
    """Starts servers of the test repository; keyword arguments replace settings. All end with the test."""
    with ExitStack() as stack:

        def start(*, wait: bool = True, **overrides: Any) -> Running:
            chosen: dict[str, Any] = {"models": repository, "device": device}
            settings = quick_settings(**(chosen | overrides))
            return stack.enter_context(running(settings, wait=wait))

        yield start


@pytest.fixture(scope="module")
def server(repository: Path, device: str) -> Iterator[Running]:
    """One server of the test repository for a whole module."""
    with running(quick_settings(repository, device=device)) as one:
        yield one


class Gate:
    """Holds up every run of an engine while it is closed. Open at first."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._held = threading.Event()

    def wait(self) -> None:
        """Returns once it is open."""
        self._held.set()
        assert self._open.wait(240)

    def until_held(self) -> None:
        """Returns once a run stands before it, since it was closed."""
        assert self._held.wait(120)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Closes it for a block."""
        self._held.clear()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no run of this process be on the event loop, however small: as on a GPU, all are in threads."""

    def choose(name: str) -> Device:
        return replace(choose_device(name), host_threads=False)

    monkeypatch.setattr("polyhead_server.runtime.choose_device", choose)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, in_threads: None) -> Gate:
    """Stands before the engines of this process. A run on the event loop would stop that, too."""
    gate, real = Gate(), Engine.run

    def run(engine: Engine, feeds: Any, outputs: Any) -> Any:
        gate.wait()
        return real(engine, feeds, outputs)

    monkeypatch.setattr(Engine, "run", run)
    return gate
