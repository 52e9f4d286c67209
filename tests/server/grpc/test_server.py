"""The server as its callers see it: loading, rejecting, draining, cancelling, reflection."""

import asyncio
import queue
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.server.conftest import Gate, fails
from tests.waiting import until

from polyhead_proto import messages as pb
from polyhead_server import GrpcServer, Settings
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import StartError
from polyhead_server.serving.loading import Loader

X = np.ones((1, 3, 16), np.float32)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def watch(server: Any, service: str = "") -> Iterator[Any]:
    """The statuses of a service, as they come."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    for response in stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=60):
        yield response.status


def reflection(server: Any) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(server.channel).ServerReflectionInfo


def start(server: Any, x: Any = X, *, request: Any = None, **options: Any) -> Any:
    """Begins an inference, and returns its future."""
    request = request or server.request("tiny", {"x": x})
    return server.method("ModelInfer").future(request, **({"timeout": 60} | options))


def wait_until_queued(server: Any, tokens: int) -> None:
    """Wait until so many tokens are queued for `tiny`: an accepted request may still be read in a thread."""
    scheduler = server.runtime.registry.find("tiny").scheduler
    until(lambda: scheduler.queued_tokens >= tokens)


def refused(server: Any, model: str = "tiny") -> tuple[Any, Any, Any]:
    """The status, message and retry header of a request."""
    with pytest.raises(grpc.RpcError) as caught:
        server.infer(model, {"x": X})
    error: Any = caught.value
    return error.code(), error.details(), dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")


@pytest.fixture
def ran(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The first number of each run that has begun."""
    values: list[float] = []
    real = Engine.run

    def run(engine: Engine, feeds: Any, outputs: Any) -> Any:
        values.append(float(feeds["x"].flat[0]) if "x" in feeds else 0.0)
        return real(engine, feeds, outputs)

    monkeypatch.setattr(Engine, "run", run)
    return values


# ---- Loading -----------------------------------------------------------------------------------


@pytest.fixture
def held_loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Loading waits until the event is set."""
    event = threading.Event()
    real = Loader.load

    def load(*arguments: Any) -> Iterator[Any]:
        event.wait(240)
        yield from real(*arguments)

    monkeypatch.setattr(Loader, "load", load)
    yield event
    event.set()


def loaded(server: Any) -> None:
    asyncio.run_coroutine_threadsafe(server.server.loaded(), server.loop).result(240)


def test_it_listens_before_it_has_loaded(serve: Any, held_loading: threading.Event) -> None:
    server = serve(wait=False)

    assert server.call("ServerLive").live
    assert not server.call("ServerReady").ready
    assert not server.call("ModelReady", pb.ModelReadyRequest(name="tiny")).ready
    assert {one.state for one in server.call("RepositoryIndex").models} == {"LOADING"}
    assert not server.call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True)).models
    code, message, retry = refused(server)
    assert (code, message) == (
        grpc.StatusCode.UNAVAILABLE,
        "model tiny is loading: try again later, or wait until its health is SERVING",
    )
    assert int(retry) > 0
    assert refused(server, "other")[0] is grpc.StatusCode.NOT_FOUND

    held_loading.set()
    loaded(server)

    assert server.call("ServerReady").ready
    assert server.call("ModelReady", pb.ModelReadyRequest(name="tiny")).ready
    assert server.infer("tiny", {"x": X})["output"].shape == X.shape


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "tiny.attention"])
def test_a_watcher_sees_loading_serving_draining(
    serve: Any, held_loading: threading.Event, service: str
) -> None:
    server = serve(wait=False)
    statuses = watch(server, service)
    assert next(statuses) == NOT_SERVING
    held_loading.set()
    assert next(statuses) == SERVING

    assert server.drain(10)

    assert list(statuses) == [NOT_SERVING]


def test_one_bad_family_does_not_stop_the_good_ones(repository: Path, tmp_path: Path, serve: Any) -> None:
    models = shutil.copytree(repository, tmp_path / "models")
    (models / "tiny-masked" / "1" / "weights.bin").unlink()
    (models / "tiny-tokens" / "1" / "manifest.json").write_text('{"format": 99}')

    server = serve(models=models)

    states = {one.name: (one.state, one.reason) for one in server.call("RepositoryIndex").models}
    assert states["tiny"] == states["tiny.attention"] == ("READY", "")
    assert states["tiny-masked"] == ("UNAVAILABLE", "weights.bin is missing")
    assert states["tiny-tokens"][0] == "UNAVAILABLE"
    assert "update polyhead" in states["tiny-tokens"][1]
    assert server.call("ServerReady").ready
    assert not server.call("ModelReady", pb.ModelReadyRequest(name="tiny-masked")).ready
    assert next(watch(server)) == SERVING
    assert next(watch(server, "tiny-masked")) == NOT_SERVING
    assert refused(server, "tiny-masked") == (
        grpc.StatusCode.UNAVAILABLE,
        "model tiny-masked cannot be served: weights.bin is missing",
        "-1",
    )
    assert server.infer("tiny", {"x": X})["output"].shape == X.shape


def test_versions_are_served_side_by_side(repository: Path, tmp_path: Path, serve: Any) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository / "tiny", models / "tiny")
    shutil.copytree(models / "tiny" / "1", models / "tiny" / "10")
    manifest = models / "tiny" / "10" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1,', '"version": 10,'))

    server = serve(models=models, versions="all")

    metadata = server.call("ModelMetadata", pb.ModelMetadataRequest(name="tiny"))
    assert list(metadata.versions) == ["1", "10"]
    assert server.infer("tiny", {"x": X}).reply.model_version == "10"
    assert server.infer("tiny", {"x": X}, model_version="1").reply.model_version == "1"


# ---- Starting ----------------------------------------------------------------------------------


def create(**settings: Any) -> None:
    async def run() -> None:
        GrpcServer(Settings(**{"port": 0, "device": "cpu", **settings}))

    asyncio.run(run())


def test_two_servers_never_share_a_port(
    repository: Path, serve: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    port = serve().server.port
    capfd.readouterr()
    with pytest.raises(StartError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
        create(models=repository, port=port)
    assert "E1" not in capfd.readouterr().err  # gRPC logs lines such as E1128 where it fails itself


# ---- Deadlines and cancellation ----------------------------------------------------------------


def test_work_whose_caller_left_is_never_run(serve: Any, gate: Gate, ran: list[float]) -> None:
    server = serve()
    ran.clear()
    with gate.closed():
        first = start(server, X)
        gate.until_held()
        cancelled = start(server, X * 2)
        expired = start(server, X * 3, timeout=0.3)
        with fails(grpc.StatusCode.DEADLINE_EXCEEDED):
            expired.result()
        cancelled.cancel()
        until(lambda: server.runtime.lifecycle.accepted <= 1)
        last = start(server, X * 4)

    assert first.result().outputs
    assert last.result().outputs
    assert ran == [1, 4]


def test_a_caller_that_leaves_during_a_run_frees_the_next(serve: Any, gate: Gate) -> None:
    server = serve()
    with gate.closed():
        leaving = start(server)
        gate.until_held()
        leaving.cancel()
        until(lambda: not server.runtime.lifecycle.accepted)
        staying = start(server, X * 2)

    assert staying.result().outputs
    assert server.counted.codes("tiny") == {"OK": 1, "CANCELLED": 1}


def test_a_timeout_bounds_the_wait_and_priorities_order_it(serve: Any, gate: Gate, ran: list[float]) -> None:
    server = serve(max_batch_tokens=1)
    ran.clear()
    waiting = []
    with gate.closed():
        running = start(server)
        gate.until_held()
        parameters = {"timeout": 10_000_000}
        impatient = start(server, request=server.request("tiny", {"x": X}, parameters=parameters))
        wait_until_queued(server, 3)
        server.loop.call_soon_threadsafe(server.loop.skip, 10)
        with fails(grpc.StatusCode.UNAVAILABLE, "waited for its turn longer than its timeout"):
            impatient.result()
        for count, priority in enumerate((5, 0, 1), 1):
            request = server.request("tiny", {"x": X * (priority + 2)}, parameters={"priority": priority})
            waiting.append(start(server, request=request))
            wait_until_queued(server, 3 * count)

    assert all(future.result().outputs for future in [running, *waiting])
    assert ran == [1, 3, 2, 7]


# ---- Draining ----------------------------------------------------------------------------------


def test_a_drain_finishes_what_was_accepted_and_refuses_what_is_new(serve: Any, gate: Gate) -> None:
    server = serve()
    with ThreadPoolExecutor() as pool, gate.closed():
        accepted = [start(server, X * number) for number in range(1, 4)]
        until(lambda: server.runtime.lifecycle.accepted >= 3)
        statuses = watch(server)
        assert next(statuses) == SERVING
        draining = pool.submit(server.drain, 30)
        assert next(statuses) == NOT_SERVING
        code, message, retry = refused(server)
        assert (code, int(retry) > 0) == (grpc.StatusCode.UNAVAILABLE, True)
        assert "draining" in message
        assert server.call("ServerLive").live
        assert not server.call("ServerReady").ready
        assert not draining.done()
    assert draining.result()
    assert all(one.result().outputs for one in accepted)


def test_a_drain_ends_with_its_grace_and_everyone_is_answered(
    serve: Any, gate: Gate, ran: list[float]
) -> None:
    server = serve()
    ran.clear()
    with ThreadPoolExecutor() as pool, gate.closed():
        running = start(server)
        gate.until_held()
        waiting = start(server, X * 2)
        until(lambda: server.runtime.lifecycle.accepted >= 2)
        draining = pool.submit(server.drain, 0)
        with fails(grpc.StatusCode.UNAVAILABLE):
            waiting.result()
        assert not draining.result(120)  # though a run goes on
    with pytest.raises(grpc.RpcError) as caught:
        running.result()
    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert ran == [1]


def test_an_unused_stream_does_not_hold_up_the_end(serve: Any) -> None:
    server = serve()
    questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = reflection(server)(iter(questions.get, None))
    questions.put(reflection_pb2.ServerReflectionRequest(list_services=""))
    next(answers)

    assert server.drain(60)  # the test's own patience is shorter

    questions.put(None)


# ---- Reflection ------------------------------------------------------------------------------------


def ask(server: Any, **question: str) -> Any:
    (answer,) = reflection(server)(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=60)
    return answer


def test_every_service_is_listed(server: Any) -> None:
    services = ask(server, list_services="").list_services_response.service

    assert {service.name for service in services} == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        ("inference.GRPCInferenceService", "ModelInferRequest"),
        ("grpc.health.v1.Health", "HealthCheckRequest"),
        ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionRequest"),
    ],
)
def test_every_service_is_described(server: Any, symbol: str, message: str) -> None:
    answer = ask(server, file_containing_symbol=symbol)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in answer.file_descriptor_response.file_descriptor_proto
    ]

    assert message in {each.name for file in files for each in file.message_type}
