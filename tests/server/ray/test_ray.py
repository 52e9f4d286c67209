"""The application and its parts, without a cluster: with objects that stand for Serve's."""

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from cyclopts import CycloptsError
from tests.server.test_runtime import infer_request, output_of
from tests.servers import quick_settings

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.names import PUSHBACK, REQUEST_ID
from polyhead_server.address import listen
from polyhead_server.errors import StartError
from polyhead_server.remote import RemoteFolder

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")

from ray.serve._private.grpc_util import gRPCGenericServer
from ray.serve.exceptions import DeploymentUnavailableError

from polyhead_server.ray import FamilyReplica, Ingress, ReplicaAnswer, add_services, build, run

# ---- The application ---------------------------------------------------------------------------


def test_every_family_of_the_repository_has_a_deployment(repository: Path) -> None:
    app = build({"models": str(repository), "replicas": 2, "cpus": 3})

    families = app._bound_deployment.init_args[1]
    assert sorted(families) == ["tiny", "tiny-masked", "tiny-tokens"]
    replica = families["tiny"]._bound_deployment
    assert (replica.name, replica.num_replicas) == ("tiny", 2)
    assert replica.ray_actor_options == {"num_cpus": 3, "num_gpus": 0}


def test_arguments_are_read_as_flags_are(repository: Path) -> None:
    settings = {"max_reply_bytes": "8MiB", "repository_mode": "poll", "poll_seconds": 2.5}

    app = build({"models": str(repository), "families": ["tiny", "tiny-masked"], **settings})

    read, families = app._bound_deployment.init_args
    assert sorted(families) == ["tiny", "tiny-masked"]
    assert (read.max_reply_bytes, read.repository_mode, read.poll_seconds) == (8 * 2**20, "poll", 2.5)
    url = build({"models": "s3://bucket/models", "families": "tiny"})
    assert url._bound_deployment.init_args[0].models == RemoteFolder("s3://bucket/models")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tls_cert": "c"}, "--tls-cert has no effect on Ray"),
        ({"http": True}, "--http has no effect on Ray"),
        ({"default": "embed=tiny"}, "--default has no effect on Ray"),
        ({"http_port": "off"}, "--http-port has no effect on Ray"),
        ({"grpc_option": "grpc.a=1"}, "--grpc-option has no effect on Ray"),
        ({"repository_mode": "explicit"}, "--repository-mode must be none or poll on Ray"),
        ({"device": "cuda:1"}, "--device must be cuda, with gpus, on Ray, was cuda:1"),
        ({"device": "cuda"}, "--device must be cuda, with gpus, on Ray, was cuda with 0"),
        ({"max_queued_tokens": 0}, 'Invalid value "0" for --max-queued-tokens'),
        ({"nonsense": 1}, "Unknown option: --nonsense"),
        ({"replicas": 0}, "num_replicas"),
        ({"models": "/nowhere"}, "--models must be a folder that can be read"),
    ],
)
def test_arguments_that_cannot_be_used_are_rejected_by_name(
    repository: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises((StartError, CycloptsError, ValueError), match=message):
        build({"models": str(repository), **wrong})


def test_the_shipped_config_says_how_a_token_is_required(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log of its deployment says that it is not."""
    text = (Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml").read_text()

    def settings(text: str) -> Any:
        (one,) = yaml.safe_load(text)["applications"]
        return build({**one["args"], "models": str(repository)})._bound_deployment.init_args[0]

    warning = "without a token (--token-file)"
    assert settings(text).token_file is None
    assert warning in caplog.text
    caplog.clear()
    text, found = re.subn(r"^( +)# (token_file: )", r"\1\2", text, flags=re.MULTILINE)
    assert found == 1
    assert settings(text).token_file == Path("/run/secrets/token")
    assert warning not in caplog.text


# ---- polyhead serve --engine ray ---------------------------------------------------------------


def test_the_try_out_requires_a_word_that_it_is_open(repository: Path) -> None:
    with pytest.raises(StartError, match=r"--host must be 0\.0\.0\.0, where Ray listens, was 127\.0\.0\.1"):
        run(quick_settings(repository))


def test_a_port_that_is_taken_is_said(repository: Path) -> None:
    with listen("0.0.0.0", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            StartError, match=rf"^Ray cannot start, with port {port}: .*ddress already in use"
        ):
            run(quick_settings(repository, host="0.0.0.0", port=port))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits(
    repository: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Serve waits for ever where there are fewer CPUs or GPUs than replicas want."""
    ended: list[str] = []

    def wait(*_: Any, **__: Any) -> None:
        signal.raise_signal(number)
        pytest.fail("it still waits")

    def end_serve() -> None:
        signal.raise_signal(number)  # an impatient one
        ended.append("serve")

    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.serve.start", lambda **_: None)
    monkeypatch.setattr("ray.serve.run", wait)
    monkeypatch.setattr("ray.serve.shutdown", end_serve)
    monkeypatch.setattr("ray.shutdown", lambda: ended.append("ray"))
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert run(quick_settings(repository, host="0.0.0.0")) == 0
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)

    assert ended == ["serve", "ray"]


# ---- A replica ---------------------------------------------------------------------------------


class Others:
    """Stands for a handle, and the replicas behind it."""

    def __init__(self) -> None:
        self.serving: list[object] = []
        self.asked = 0

    def broadcast(self, *_: object) -> "Others":
        self.asked += 1
        return self

    async def results_async(self, **_: object) -> list[object]:
        if not self.serving:
            raise DeploymentUnavailableError("tiny")
        return self.serving


@pytest.fixture(autouse=True)
def _no_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves this process as it is."""
    for name in ("configure", "prepare"):
        monkeypatch.setattr(f"polyhead_server.ray.{name}", lambda *_: None)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    """Other replicas of the family, for a replica that is in this process."""
    found = Others()

    class Context:
        def get_assigned_resources(self) -> dict[str, float]:
            return {"CPU": 1}

    monkeypatch.setattr("ray.get_runtime_context", Context)
    monkeypatch.setattr("ray.serve.get_deployment_handle", lambda _: found)
    return found


@pytest.fixture
def broken(repository: Path, tmp_path: Path) -> Path:
    """A repository whose tiny family cannot be loaded."""
    models = shutil.copytree(repository, tmp_path / "models")
    (models / "tiny" / "1" / "weights.bin").write_bytes(b"bad")
    return models


async def replica_of(models: Path, **settings: Any) -> Any:
    """A replica, made as Serve makes it."""
    replica: Any = object.__new__(FamilyReplica)
    await replica.__init__(quick_settings(models, **settings), "tiny")
    return replica


async def test_a_replica_that_serves_asks_no_others(repository: Path, others: Others) -> None:
    replica = await replica_of(repository)
    await replica.check_health()

    (answer,) = await replica.answer("ModelInfer", infer_request(), "id")

    assert output_of(answer.message).size
    assert others.asked == 0


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_a_family_that_none_serves_leaves_a_replica_that_says_why(
    broken: Path, others: Others, mode: str
) -> None:
    replica = await replica_of(broken, repository_mode=mode)
    await replica.check_health()
    others.serving = [False, OSError("a replica that has just ended")]
    await replica.check_health()
    assert not await replica.serves()

    (answer,) = await replica.answer("ModelInfer", infer_request(), "id")

    assert answer.error.code.name == "UNAVAILABLE"
    assert "weights.bin must have" in answer.error.message


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_a_replica_that_cannot_load_what_another_serves_is_replaced(
    broken: Path, others: Others, mode: str
) -> None:
    others.serving = [False, True]

    replica = await replica_of(broken, repository_mode=mode)
    with pytest.raises(StartError, match=r"^tiny cannot be loaded here, and another replica serves it$"):
        await replica.check_health()


async def test_a_replica_whose_device_is_lost_is_replaced(repository: Path, others: Others) -> None:
    replica = await replica_of(repository)

    replica._runtime.lifecycle.lose_device()

    with pytest.raises(StartError, match="the device failed for good"):
        await replica.check_health()


# ---- The ingress -------------------------------------------------------------------------------


class Handle:
    """Stands for the handle of a family whose replicas give these answers."""

    def __init__(self, *answers: ReplicaAnswer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[object, ...]] = []

    @property
    def answer(self) -> "Handle":
        return self

    async def remote(self, *asked: object) -> list[ReplicaAnswer]:
        self.asked.append(asked)
        return self.answers


class Context:
    """Stands for Serve's context of a call."""

    code: Any = None

    def __init__(self, token: str = "") -> None:
        self._token = token

    def invocation_metadata(self) -> Any:
        return [(REQUEST_ID, "mine"), ("authorization", f"Bearer {self._token}")]

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailers = metadata


def ingress(families: dict[str, Handle], **settings: Any) -> Any:
    return Ingress(quick_settings(Path("models"), **settings), families)


async def asked(one: Any, procedure: str, request: Any, context: Context | None = None) -> bytes:
    """Calls as Serve does; the message of the answer."""
    answer = await getattr(one, procedure)(request.SerializeToString(), context or Context())
    return bytes(answer.SerializeToString())


def index_of(name: str) -> ReplicaAnswer:
    models = [{"name": name, "version": "1", "state": "READY"}]
    return ReplicaAnswer(pb.RepositoryIndexResponse(models=models).SerializeToString())


async def test_the_index_lists_the_families_that_answer() -> None:
    class Waiting(Handle):
        async def remote(self, *_: object) -> list[ReplicaAnswer]:
            await both.wait()  # all are asked at once
            return self.answers

    class Lost(Handle):
        async def remote(self, *_: object) -> list[ReplicaAnswer]:
            await both.wait()
            raise DeploymentUnavailableError("lost")

    both = asyncio.Barrier(3)
    one = ingress({"tiny": Waiting(index_of("tiny")), "lost": Lost(), "other": Waiting(index_of("other"))})

    async with asyncio.timeout(30):
        reply = await asked(one, "RepositoryIndex", pb.RepositoryIndexRequest())

    listed = pb.RepositoryIndexResponse.FromString(reply).models
    assert [model.name for model in listed] == ["tiny", "other"]


@pytest.mark.parametrize("ready", [True, False])
async def test_the_server_is_ready_when_a_family_is(ready: bool) -> None:
    def handle(ready: bool) -> Handle:
        return Handle(ReplicaAnswer(pb.ServerReadyResponse(ready=ready).SerializeToString()))

    one = ingress({"tiny": handle(ready), "other": handle(False)})

    reply = await asked(one, "ServerReady", pb.ServerReadyRequest())

    assert pb.ServerReadyResponse.FromString(reply).ready == ready


async def test_what_one_replica_cannot_answer_for_all_is_unimplemented() -> None:
    context = Context()
    one = ingress({"tiny": Handle()})

    for procedure in ("ModelStatistics", "RepositoryModelLoad", "RepositoryModelUnload"):
        await asked(one, procedure, RPCS[procedure].request(), context)

        assert context.code is grpc.StatusCode.UNIMPLEMENTED
        assert context.details == f"{procedure} is not served on Ray: it reaches one replica only"
    metadata = pb.ServerMetadataResponse.FromString(
        await asked(one, "ServerMetadata", pb.ServerMetadataRequest())
    )
    assert "statistics" not in metadata.extensions


async def test_requests_go_to_the_family_of_the_model() -> None:
    tiny, other = Handle(ReplicaAnswer(b"tiny's")), Handle(ReplicaAnswer(b"other's"))
    one = ingress({"tiny": tiny, "other": other})

    request = pb.ModelInferRequest(model_name="other.attention")
    assert await asked(one, "ModelInfer", request) == b"other's"
    assert await asked(one, "ModelMetadata", pb.ModelMetadataRequest(name="tiny")) == b"tiny's"

    assert other.asked == [("ModelInfer", request.SerializeToString(), "mine")]


async def test_an_unknown_family_is_not_found_and_not_ready() -> None:
    context = Context()
    one = ingress({"tiny": Handle()})

    await asked(one, "ModelInfer", pb.ModelInferRequest(model_name="x"), context)

    assert context.code is grpc.StatusCode.NOT_FOUND
    assert context.details == "model 'x' is not served; families are tiny"
    assert context.trailers == [(REQUEST_ID, "mine")]
    reply = await asked(one, "ModelReady", pb.ModelReadyRequest(name="x"))
    assert not pb.ModelReadyResponse.FromString(reply).ready


async def test_a_request_that_is_too_large_reaches_no_replica() -> None:
    context = Context()

    await asked(
        ingress({"tiny": Handle()}, max_request_bytes=1024),
        "ModelInfer",
        pb.ModelInferRequest(model_name="tiny", raw_input_contents=[bytes(2000)]),
        context,
    )

    assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a request must have at most 1024 bytes, had 20" in context.details


async def test_callers_need_a_token_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    one = ingress({"tiny": Handle(ReplicaAnswer(b"reply"))}, token_file=tmp_path / "token")
    request, wrong, right = (
        pb.ModelInferRequest(model_name="tiny"),
        Context("no"),
        Context("0123456789abcdef"),
    )

    assert await asked(one, "ModelInfer", request, wrong) == b""
    assert await asked(one, "ModelInfer", request, right) == b"reply"

    assert wrong.code is grpc.StatusCode.PERMISSION_DENIED
    assert right.code is None


async def requests(*names: str) -> AsyncIterator[bytes]:
    for name in names:
        yield pb.ModelInferRequest(model_name=name).SerializeToString()


async def test_a_stream_is_answered_in_order_until_a_request_fails() -> None:
    one = ingress(
        {"tiny": Handle(ReplicaAnswer(b"a"), ReplicaAnswer(b"b")), "other": Handle(ReplicaAnswer(b"c"))}
    )
    context = Context()

    stream = one.ModelStreamInfer(requests("tiny", "other", "nothing", "tiny"), context)

    assert [answer.SerializeToString() async for answer in stream] == [b"a", b"b", b"c", b""]
    assert context.code is grpc.StatusCode.NOT_FOUND


# ---- Between Serve's gRPC server and its callers -----------------------------------------------

ServeCall = Callable[[Any, Any], None]


async def called(serve_call: ServeCall) -> bytes:
    """Calls once; `serve_call` stands for what Serve does with the call."""

    def factory(service_method: str, streaming_type: Any) -> Any:
        async def unary(request: bytes, context: Any) -> bytes:
            serve_call(request, context)
            return request

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request
            serve_call(b"", context)

        return stream if streaming_type.name == "STREAM_STREAM" else unary

    server = gRPCGenericServer(factory)
    add_services(None, server)
    assert server.service_handler_factory is factory  # other services' handlers are as Serve makes them
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream: Any = channel.stream_stream(RPCS["ModelStreamInfer"].path)
            replies = []
            try:
                async for reply in stream(iter([b"one"]), timeout=30):
                    replies.append(reply)
            finally:
                assert replies == [b"one"]
            method: Any = channel.unary_unary(RPCS["ModelInfer"].path)
            return bytes(await method(b"\xff not a message", timeout=30))
    finally:
        await server.stop(0)


async def test_messages_cross_as_bytes() -> None:
    def succeed(_request: Any, context: Any) -> None:
        context.set_code(grpc.StatusCode.OK)

    assert await called(succeed) == b"\xff not a message"


def fail(code: grpc.StatusCode, *, ours: bool = False) -> ServeCall:
    def serve_call(_request: Any, context: Any) -> None:
        context.set_code(code)
        context.set_details("a stack of Serve's")
        context.set_trailing_metadata([(REQUEST_ID, "mine")] if ours else [("request_id", "Serve's")])

    return serve_call


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND]
)
async def test_what_serve_fails_in_may_be_tried_again(code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="try again") as caught:
        await called(fail(code))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(caught.value.trailing_metadata())[PUSHBACK] == "200"


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.NOT_FOUND])
async def test_a_status_of_our_own_stays_as_it_is(code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await called(fail(code, ours=True))

    assert caught.value.code() is code
    assert caught.value.details() == "a stack of Serve's"
