"""What clients are besides `encode`: health, metadata, channels, their life."""

import asyncio
import inspect
from typing import Any

import grpc
import pytest
from tests.client.conftest import Connect, FakeServer

from polyhead_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    Duration,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from polyhead_client.channel import OPTIONS
from polyhead_proto import messages as pb


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> dict[str, inspect.Signature]:
        return {
            name: inspect.signature(value)
            for name, value in vars(kind).items()
            if not name.startswith("_") and callable(value)
        }

    assert public(Client) == public(AsyncClient)
    assert inspect.signature(Client.live).return_annotation is bool
    assert inspect.iscoroutinefunction(AsyncClient.encode)
    assert "attention: True for the weights" in (AsyncClient.encode.__doc__ or "")


def test_statistics_are_of_one_model_or_all(client: Client) -> None:
    (words,) = client.statistics("words")

    assert (words.name, words.inference_count, words.execution_count) == ("words", 5, 2)
    assert words.durations["success"] == Duration(count=5, total_ns=700)
    assert words.durations["queue"] == Duration(count=0, total_ns=0)
    assert [model.name for model in client.statistics()] == ["vectors", "words"]


def test_a_server_that_is_not_there_is_neither_live_nor_ready(connect: Connect) -> None:
    client = connect("127.0.0.1:1")

    assert not client.live()
    assert not client.ready()


def test_the_probes_are_not_tried_again(client: Client, fake: FakeServer) -> None:
    fake.fail("ServerReady", grpc.StatusCode.UNAVAILABLE)

    assert not client.ready()
    assert fake.count("ServerReady") == 1


def test_waiting_ends_when_the_server_is_ready(client: Client, fake: FakeServer) -> None:
    def later(request: Any, context: grpc.ServicerContext) -> Any:
        if fake.count("ServerReady") == 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
        return pb.ServerReadyResponse(ready=fake.count("ServerReady") > 3)

    fake.answers["ServerReady"] = later

    client.wait_until_ready()

    assert fake.count("ServerReady") == 4


def test_waiting_for_one_model(client: Client, fake: FakeServer) -> None:
    fake.answers["ModelReady"] = lambda *_: pb.ModelReadyResponse(ready=fake.count("ModelReady") > 1)

    client.wait_until_ready("words")

    assert fake.last("ModelReady").name == "words"
    assert fake.count("ServerReady") == 0


@pytest.mark.usefixtures("long_pauses")
def test_waiting_ends_with_the_deadline(client: Client, fake: FakeServer) -> None:
    fake.answers["ServerReady"] = lambda *_: pb.ServerReadyResponse(ready=False)

    with pytest.raises(
        DeadlineExceeded, match=f"{fake.target} was not ready within 60.0 s: it is loading, or draining"
    ):
        client.wait_until_ready(timeout=60)


@pytest.mark.usefixtures("long_pauses")
def test_waiting_for_a_server_that_never_comes_says_why(connect: Connect) -> None:
    with pytest.raises(
        DeadlineExceeded, match=r"127\.0\.0\.1:1 was not ready within 60\.0 s: .*is unavailable"
    ):
        connect("127.0.0.1:1").wait_until_ready(timeout=60)


@pytest.mark.parametrize("says", ["false, as Triton", "NOT_FOUND, as KServe"])
def test_waiting_for_a_model_that_is_not_there_is_pointless(
    client: Client, fake: FakeServer, says: str
) -> None:
    fake.answers["ModelReady"] = lambda *_: pb.ModelReadyResponse(ready=False)
    if says.startswith("NOT"):
        fake.fail("ModelReady", grpc.StatusCode.NOT_FOUND, "no model 'cat'")

    assert client.ready("cat") is False
    with pytest.raises(NotFound, match=r"no model '?cat"):
        client.wait_until_ready("cat")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (pb.RepositoryIndexResponse, r"it is UNAVAILABLE weights\.bin is missing"),
        (None, "it is loading, or draining"),
    ],
)
@pytest.mark.usefixtures("long_pauses")
def test_a_model_that_never_comes_is_named_with_the_reason(
    client: Client, fake: FakeServer, index: Any, reason: str
) -> None:
    listed = {"name": "cat", "version": "1", "state": "UNAVAILABLE", "reason": "weights.bin is missing"}
    fake.answers["ModelReady"] = lambda *_: pb.ModelReadyResponse(ready=False)
    fake.answers["RepositoryIndex"] = lambda _, context: (
        index(models=[listed]) if index else context.abort(grpc.StatusCode.UNIMPLEMENTED, "no index")
    )

    with pytest.raises(DeadlineExceeded, match=rf"cat at .* was not ready within 60\.0 s: {reason}"):
        client.wait_until_ready("cat", timeout=60)


def test_no_model_that_is_ready_is_reported_with_the_reason(client: Client, fake: FakeServer) -> None:
    fake.answers["RepositoryIndex"] = lambda *_: pb.RepositoryIndexResponse(
        models=[
            {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "weights.bin is missing"}
        ]
    )
    with pytest.raises(
        Unavailable, match=r"has no model that is ready: broken is UNAVAILABLE weights\.bin is missing"
    ):
        client.encode("a")

    fake.answers["RepositoryIndex"] = lambda *_: pb.RepositoryIndexResponse()
    with pytest.raises(NotFound, match="serves no models"):
        client.encode("a")

    fake.fail("RepositoryIndex", grpc.StatusCode.UNIMPLEMENTED)
    with pytest.raises(InvalidRequest, match=r"model must be given: .* does not list its models"):
        client.encode("a")


class Recorder(grpc.UnaryUnaryClientInterceptor):
    def __init__(self) -> None:
        self.methods: list[str] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self.methods.append(details.method)
        return continuation(details, request)


def test_a_channel_of_ones_own_is_used_and_left_open(fake: FakeServer) -> None:
    recorder = Recorder()
    with grpc.insecure_channel(fake.target, OPTIONS) as channel:
        with Client(channel=grpc.intercept_channel(channel, recorder)) as client:
            client.encode("a", model="words")
        with Client(channel=channel) as again:
            assert again.live()

    assert [method.rpartition("/")[2] for method in recorder.methods] == ["ModelMetadata", "ModelInfer"]


def test_an_asyncio_channel_of_ones_own_is_used_and_left_open(fake: FakeServer) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(fake.target) as channel:
            async with AsyncClient(channel=channel) as client:
                assert (await client.encode("a", model="words")).model == "words"
            async with AsyncClient(channel=channel) as again:
                assert await again.live()

    asyncio.run(run())
