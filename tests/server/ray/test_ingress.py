"""What the ingress does where replicas refuse, or Serve fails. With handles that stand for Serve's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.servers import quick_settings

from polyhead_proto import messages as pb
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ErrorReply

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")

from ray.exceptions import RayError

from polyhead_server.ray.ingress import Ingress, Message


@pytest.fixture(autouse=True)
def _no_log_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_server.ray.ingress.configure", lambda *_: None)


class Handle:
    """Stands for the handle of a family whose replicas all answer the same."""

    def __init__(self, answer: bytes | ErrorReply) -> None:
        self._answer = answer

    @property
    def call(self) -> "Handle":
        return self

    async def remote(self, *_: object) -> bytes | ErrorReply:
        return self._answer

    def broadcast(self, *_: object) -> "Handle":
        return self

    async def results_async(self, **_: object) -> list[bytes | ErrorReply]:
        return [self._answer, self._answer]


class Context:
    """Stands for Serve's context of a call."""

    def invocation_metadata(self) -> Any:
        return [(REQUEST_ID, "mine")]

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailers = metadata


def ingress(answer: bytes | ErrorReply) -> Ingress:
    return Ingress(quick_settings(Path("models")), {"tiny": Handle(answer)})


async def test_statistics_of_what_replicas_do_not_serve_are_an_error() -> None:
    missing = ErrorReply(code=grpc.StatusCode.NOT_FOUND, message="there are tiny, tiny.attention")
    request = pb.ModelStatisticsRequest(name="tiny.nothing").SerializeToString()
    context = Context()

    reply = await ingress(missing).answer("ModelStatistics", request, context)

    assert reply == Message()
    assert (context.code, context.details) == (missing.code, missing.message)


async def test_the_index_asks_all_families_at_once() -> None:
    """Else a node that has vanished would hold it up for each family in turn."""

    class Waiting(Handle):
        async def results_async(self, **_: object) -> list[bytes | ErrorReply]:
            await both.wait()
            return [self._answer]

    def handle(name: str) -> Waiting:
        models = [{"name": name, "version": "1", "state": "READY"}]
        return Waiting(pb.RepositoryIndexResponse(models=models).SerializeToString())

    both = asyncio.Barrier(2)
    one = Ingress(quick_settings(Path("models")), {name: handle(name) for name in ("tiny", "other")})

    async with asyncio.timeout(30):
        message = await one.answer("RepositoryIndex", b"", Context())

    reply = pb.RepositoryIndexResponse.FromString(message.content)
    assert [model.name for model in reply.models] == ["tiny", "other"]


class BrokenOff:
    """The requests of a stream whose proxy has ended."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        raise RayError


class Failing(BrokenOff):
    """The requests of a stream that cannot be read."""

    async def __anext__(self) -> bytes:
        raise ValueError("not a request")


async def test_a_stream_whose_requests_cannot_be_read_ends_with_internal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = Context()

    async with asyncio.timeout(30):
        assert [reply async for reply in ingress(b"").stream(Failing(), context)] == [Message()]
    assert context.code is grpc.StatusCode.INTERNAL
    assert "request mine failed" in caplog.text


async def test_a_stream_ends_with_the_proxy_that_it_came_through() -> None:
    async with asyncio.timeout(120):
        assert [reply async for reply in ingress(b"").stream(BrokenOff(), Context())] == []
