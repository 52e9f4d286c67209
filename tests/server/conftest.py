"""A real server on a free port, in a thread of its own, and the smallest client that can speak to it."""

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
import pytest
from numpy.typing import NDArray
from tests.clock import SkippingLoop
from tests.servers import InThread, quick_settings, serving

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_server import GrpcServer, Runtime, Settings
from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import choose_device
from polyhead_server.engine.engine import Engine
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
    def loop(self) -> SkippingLoop:
        """Where it runs."""
        return self.one.loop

    def call(self, name: str, request: Any = None, **options: Any) -> Any:
        """Calls a remote procedure; without a request, with an empty one."""
        rpc = RPCS[name]
        payload = rpc.request() if request is None else request
        method = self.channel.unary_unary(
            rpc.path,
            request_serializer=None if isinstance(payload, bytes) else rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        return method(payload, **({"timeout": 120} | options))

    def infer(self, model: str, inputs: Mapping[str, Value], **options: Any) -> "Result":
        """Infers; see `request` for the options."""
        return Result(self.call("ModelInfer", self.request(model, inputs, **options)))

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


def everything_on(provider: str) -> list[Any]:
    """A session's record of where its nodes are: on this provider."""
    node = SimpleNamespace(op_type="MatMul")
    return [SimpleNamespace(ep_name=provider, get_nodes=lambda: [node])]


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
