"""A small server in this process, scripted by the tests, and both clients behind one face."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.clock import SkippingLoop
from tests.metadata import AXES, SCORES, described
from tests.servers import quick_settings, serving_many

from polyhead_client import AsyncClient, Client, Encoding
from polyhead_client.calls import Sleep
from polyhead_proto import RPCS, SERVICE
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.faults import Fault
from polyhead_proto.names import FAULT, PUSHBACK

Answer = Callable[[Any, grpc.ServicerContext], Any]

D, H, L = 4, 3, 2
TOP, SIDE = 4, 3
LIMIT = 64 << 20

SIZES = {"D": D, "H": H, "L": L, "Scores": len(SCORES), "Top": TOP, "Side": SIDE}
DATATYPES = {
    **dict.fromkeys(["input_ids", "token_type_ids", "rows"], "INT64"),
    **dict.fromkeys(["lengths", "top_keys"], "INT32"),
    **dict.fromkeys(["text", "tokens"], "BYTES"),
    "mask": "BOOL",
    "thumbnails": "UINT8",
}
"""Those that are not FP32."""
SHAPES = {"x": [-1, -1, D], "mask": [-1, -1, -1], "text": [-1]}
"""Those of inputs that have no role."""
INPUTS = {"vectors": ["x", "mask"], "words": ["input_ids", "token_type_ids", "text"]}
MORE_INPUTS = {"rows": "rows", "insight": "head_mix"}
WORDS = ["pooled", "tokens", "lengths"]
"""Outputs of texts."""
INSIGHT = ["head_scores", "weighted_scores", "rollout", "mixed", "top_keys", "top_weights", "thumbnails"]
OUTPUTS = {
    "": ["output"],
    "pooled": [],
    "attention": ["output", *(f"attention.{layer}" for layer in range(L)), "value_norms"],
    "rows": ["output", "attention_rows"],
    "insight": ["output", "value_norms", *INSIGHT],
}


def tensor(name: str) -> Any:
    """An input or output, as metadata describes it."""
    axes = AXES.get(name.partition(".")[0], ("B", "T"))
    shape = SHAPES.get(name) or [SIZES.get(axis, -1) for axis in axes]
    return pb.ModelMetadataResponse.TensorMetadata(
        name=name, datatype=DATATYPES.get(name, "FP32"), shape=shape
    )


def _as_bytes(reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())


class FakeServer:
    """Serves two families, `vectors` (floats) and `words` (texts and token ids), with made-up numbers.

    `answers[rpc]` may be replaced; `properties` override those of every model; `calls` has
    every request with its metadata. `graphs` are those of each family, which may also have `rows`, `pooled`
    and `insight`; with `head_mask`, each takes one. `script` plays replies in parts: number of the stream and
    context → messages.
    """

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.families = ["vectors", "words"]
        self.graphs = ["", "attention"]
        self.head_mask = False
        self.properties: dict[str, str] = {}
        self.script: Callable[[int, grpc.ServicerContext], Iterable[Any]] = lambda *_: ()
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []
        self.answers: dict[str, Answer] = {
            "ServerLive": lambda *_: pb.ServerLiveResponse(live=True),
            "ServerReady": lambda *_: pb.ServerReadyResponse(ready=True),
            "ModelReady": lambda *_: pb.ModelReadyResponse(ready=True),
            "ServerMetadata": lambda *_: pb.ServerMetadataResponse(
                name="fake", version="1.2", extensions=["statistics"]
            ),
            "ModelMetadata": self._metadata,
            "ModelInfer": self._infer,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
        }
        self._server = grpc.server(
            ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        handlers = {
            rpc.name: grpc.unary_unary_rpc_method_handler(
                self._handler(rpc.name),
                request_deserializer=rpc.request.FromString,
                response_serializer=_as_bytes,
            )
            for rpc in RPCS.values()
            if rpc.name in self.answers
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._play, response_serializer=_as_bytes
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = (
            self._server.add_insecure_port("127.0.0.1:0")
            if credentials is None
            else self._server.add_secure_port("127.0.0.1:0", credentials)
        )
        self.target = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def count(self, rpc: str) -> int:
        return sum(name == rpc for name, _, _ in self.calls)

    def last(self, rpc: str) -> Any:
        return [request for name, request, _ in self.calls if name == rpc][-1]

    def fail(
        self,
        rpc: str,
        code: grpc.StatusCode,
        details: str = "what went wrong",
        *,
        times: int = 10**6,
        when: Callable[[Any], bool] = lambda _: True,
        pushback: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Have a procedure fail so often, for requests that are such; say when to come back, or the fault."""
        usual, left = self.answers[rpc], [times]

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            if when(request):
                left[0] -= 1
                if left[0] >= 0:
                    if pushback is not None:
                        context.set_trailing_metadata(((PUSHBACK, pushback),))
                    if fault is not None:
                        context.set_trailing_metadata(((FAULT, fault.to_json()),))
                    context.abort(code, details)
            return usual(request, context)

        self.answers[rpc] = answer

    def _handler(self, name: str) -> Answer:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            metadata = dict(context.invocation_metadata())
            self.calls.append((name, request, metadata))
            return self.answers[name](request, context)

        return handle

    def _play(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        self.calls.append(("ModelStreamInfer", next(requests), {}))
        yield from self.script(self.count("ModelStreamInfer"), context)

    def _metadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        family, _, graph = request.name.partition(".")
        if family not in self.families or graph not in self.graphs or request.version not in {"", "1"}:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.name!r}, there are {self.families}")
        inputs, outputs = list(INPUTS[family]), list(OUTPUTS[graph])
        if family == "words":
            outputs[1:1] = WORDS
        if graph in MORE_INPUTS:
            inputs.append(MORE_INPUTS[graph])
        if self.head_mask:
            inputs.append("head_mask")
        return pb.ModelMetadataResponse(
            name=request.name,
            versions=["1"],
            platform="onnxruntime_onnx",
            inputs=map(tensor, [*inputs, "lengths"]),
            outputs=map(tensor, outputs),
            properties={
                "models": ",".join(f"{family}.{graph}".removesuffix(".") for graph in self.graphs),
                "tensors": described([*inputs, *outputs]),
                "layers": str(L),
                "heads": str(H),
                "d_model": str(D),
                "max_tokens": "",
                "parameters": "1234",
                "max_request_bytes": str(LIMIT),
                "max_reply_bytes": str(LIMIT),
                **self.properties,
            },
        )

    def _index(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.RepositoryIndexResponse(
            models=[
                {"name": f"{family}.{graph}".removesuffix("."), "version": "1", "state": "READY"}
                for family in self.families
                for graph in self.graphs
            ]
        )

    def _statistics(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.ModelStatisticsResponse(
            model_stats=[
                pb.ModelStatistics(
                    name=request.name or family,
                    version="1",
                    inference_count=5,
                    execution_count=2,
                    last_inference=1_700_000_000_000,
                    inference_stats={"success": {"count": 5, "ns": 700}, "fail": {}},
                )
                for family in ([request.name] if request.name else self.families)
            ]
        )

    def _infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        inputs = {
            tensor.name: (tensor, raw)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        arrays = {
            name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
            for name, (tensor, raw) in inputs.items()
            if tensor.datatype != "BYTES"
        }
        rows: list[list[str]] = []
        if "text" in inputs:
            rows = [["[CLS]", *text.split(), "[SEP]"] for text in read_bytes(inputs["text"][1])]
            lengths = np.array([len(row) for row in rows], np.int32)
            rows = [row + [""] * (lengths.max() - len(row)) for row in rows]
            x = np.array([[[len(token)] * D for token in row] for row in rows], np.float32)
        else:
            x = (
                arrays["x"].astype(np.float32)
                if "x" in arrays
                else np.repeat(arrays["input_ids"][..., None], D, -1)
            )
            lengths = arrays.get("lengths", np.full(len(x), x.shape[1], np.int32))
        visible = np.arange(x.shape[1]) < lengths[:, None]
        kept = arrays.get("head_mask", np.ones((len(x), L, H), np.float32)).mean((1, 2))[:, None]
        results: dict[str, NDArray[Any] | list[list[str]]] = {
            "output": (2 * x * kept[..., None] * visible[..., None]).astype(np.float32),
            "pooled": (x * visible[..., None]).sum(1).astype(np.float32),
            "logits": (x * visible[..., None]).sum((1, 2))[:, None].astype(np.float32),
            "tokens": rows,
            "lengths": lengths,
        }
        wanted = {output.name for output in request.outputs}
        results |= {
            name: weights(int(name[10:]), visible) for name in wanted if name.startswith("attention.")
        }
        if not wanted <= results.keys():
            results |= reduced(np.stack([weights(layer, visible) for layer in range(L)], 1), visible, arrays)
        reply = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        for output in request.outputs:
            parameters = parameters_of(output)
            add_output(reply, output.name, results[output.name], parameters)
        for name, nanoseconds in {
            "parse_ns": 1000,
            "queue_ns": 2000,
            "compute_ns": 3000,
            "serialise_ns": 4000,
        }.items():
            reply.parameters[name].int64_param = nanoseconds
        return reply


def weights(layer: int, visible: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Made-up weights [B, H, T, T] in 0..1, zero in padding."""
    T = visible.shape[1]
    head, query, key = np.ogrid[:H, :T, :T]
    raw = ((layer + 1) * (head + 2) * (query + 3) * (key + 5)) % 101 / 101
    return np.asarray(raw * visible[:, None, :, None] * visible[:, None, None, :], np.float32)


def reduced(
    attention: NDArray[np.float32], visible: NDArray[np.bool_], inputs: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """What the graphs `rows` and `insight` make of weights [B, L, H, T, T]."""
    size, T = visible.shape
    layer, head, key = np.ogrid[:L, :H, :T]
    norms = np.float32(1 + 7 * layer + 3 * head + key) * visible[:, None, None]
    attention = attention.astype(np.float64)  # sums do not depend on padding
    scores = np.stack([attention.sum((-1, -2)), attention.max((-1, -2)), attention[..., 0].sum(-1)], -1)
    keys = np.argsort(-attention, -1, kind="stable")[..., :TOP].astype(np.int32)
    top = np.take_along_axis(attention, keys, -1)
    keys[top == 0] = -1
    missing = [(0, 0)] * 4 + [(0, TOP - keys.shape[-1])]
    found: dict[str, NDArray[Any]] = {
        "value_norms": norms,
        "head_scores": scores,
        "weighted_scores": -scores,
        "rollout": attention.mean((1, 2)),
        "top_keys": np.pad(keys, missing, constant_values=-1),
        "top_weights": np.pad(top, missing),
        "thumbnails": np.broadcast_to(
            (scores[..., 1:2, None] * 255).astype(np.uint8), (size, L, H, SIDE, SIDE)
        ),
    }
    if "head_mix" in inputs:
        found["mixed"] = np.einsum("blh,blhqk->bqk", inputs["head_mix"], attention)
    if "rows" in inputs:
        found["attention_rows"] = np.take_along_axis(
            attention, inputs["rows"][:, None, None, :, None], axis=3
        )
    return {
        name: value.astype(np.float32) if value.dtype == np.float64 else value
        for name, value in found.items()
    }


def parameters_of(output: Any) -> dict[str, Any]:
    """The parameters of a requested output."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in output.parameters.items()
    }


def add_output(reply: Any, name: str, value: Any, parameters: dict[str, Any]) -> None:
    if name == "tokens":
        reply.outputs.add(name=name, datatype="BYTES", shape=[len(value), len(value[0])])
        parts = [token.encode() for row in value for token in row]
        reply.raw_output_contents.append(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
        return
    axes = AXES[name.partition(".")[0]]
    for parameter, axis in (("layers", 1), ("heads", axes.index("H") if "H" in axes else 0), ("queries", 2)):
        if parameter in parameters:
            value = value.take(indices(parameters[parameter]), axis)
    if "top" in parameters:
        value = value[..., : parameters["top"]]
    datatype = parameters.get("dtype", {"i4": "INT32", "u1": "UINT8"}.get(value.dtype.str[1:], "FP32"))
    if datatype == "UINT8" and value.dtype != np.uint8:
        value = np.round(value * 255)
    value = value.astype(DTYPES[datatype])
    reply.outputs.add(name=name, datatype=datatype, shape=value.shape)
    reply.raw_output_contents.append(value.tobytes())


def indices(spelled: str) -> list[int]:
    first, colon, last = spelled.partition(":")
    return list(range(int(first), int(last))) if colon else [int(part) for part in spelled.split(",")]


def read_bytes(raw: bytes) -> list[str]:
    texts = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        texts.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return texts


class Awaited:
    """An `AsyncClient` in a loop of its own, called like a `Client`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = SkippingLoop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = AsyncClient(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: asyncio.run_coroutine_threadsafe(
            method(*args, **kwargs), self._loop
        ).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def real_server(repository: Path) -> Iterator[str]:
    """The address of polyhead's own server, with the test repository."""
    with serving_many(quick_settings(repository)) as address:
        yield address


@pytest.fixture(scope="session")
def small_server(repository: Path) -> Iterator[str]:
    """The address of a server with the test repository, whose messages are small."""
    settings = quick_settings(repository, max_reply_bytes=8 * 1024, max_stream_reply_bytes=400_000)
    with serving_many(settings) as address:
        yield address


@pytest.fixture
def start_fake() -> Iterator[Callable[..., FakeServer]]:
    """Starts further servers."""
    servers: list[FakeServer] = []

    def start(credentials: grpc.ServerCredentials | None = None) -> FakeServer:
        servers.append(FakeServer(credentials))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def fake(start_fake: Callable[..., FakeServer]) -> FakeServer:
    return start_fake()


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a day pass in each pause that a client makes between two calls, and its deadline with it."""
    passed = 0.0

    def pause(**_: float) -> Sleep:
        nonlocal passed
        passed += 86_400
        return Sleep(seconds=0.0)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr("polyhead_client.calls.time", clock)
    monkeypatch.setattr("polyhead_client.server_operations.Sleep", pause)


Connect = Callable[..., Client]


QUICK_OVER_BOTH = ("test_client", "test_real_server")
OVER_BOTH = (
    "test_coalescing",
    "test_errors",
    "test_large_replies",
    "test_options",
    "test_retry",
    "test_several_servers",
    "test_splitting",
)
"""What other modules test is the same code in both kinds of client. Of these, the half of asyncio is slow."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of calls with both kinds of client, where these differ."""
    if "transport" in metafunc.fixturenames:
        module = Path(metafunc.module.__file__ or "").stem
        kinds: list[Any] = ["sync"]
        if module in QUICK_OVER_BOTH + OVER_BOTH:
            marks = () if module in QUICK_OVER_BOTH else pytest.mark.slow
            kinds.append(pytest.param("asyncio", marks=marks))
        metafunc.parametrize("transport", kinds)


@pytest.fixture
def connect(transport: str) -> Iterator[Connect]:
    """Makes clients of either kind; both are called in the same way."""
    kind = {"sync": Client, "asyncio": Awaited}[transport]
    clients: list[Client] = []

    def make(*args: Any, **kwargs: Any) -> Client:
        clients.append(cast(Client, kind(*args, **kwargs)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


RANDOM = np.random.default_rng(3)


def vectors(*shape: int) -> NDArray[np.float32]:
    """Random vectors."""
    return RANDOM.standard_normal(shape, np.float32)


@pytest.fixture
def client(connect: Connect, fake: FakeServer) -> Client:
    return connect(fake.target)


TEXTS = ["the <b>cat</b> sat", "dog"]
ALL_INSIGHT: dict[str, Any] = {
    "scores": True,
    "rollout": True,
    "top": TOP,
    "thumbnails": True,
    "value_norms": True,
    "head_mix": np.ones((L, H), np.float32),
}


@pytest.fixture
def all_graphs(fake: FakeServer) -> None:
    fake.graphs = ["", "attention", "insight"]


@pytest.fixture
def sentence(client: Client, all_graphs: None) -> Encoding:
    """Tokens [CLS] the <b>cat</b> sat [SEP], all heads of layer 1."""
    return client.encode(TEXTS[0], model="words", attention=[1])
