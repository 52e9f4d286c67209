"""The runtime by itself: no port, no gRPC server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pages import block
from tests.server.conftest import Gate, Running
from tests.servers import quick_settings
from tests.waiting import reached

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_server import Runtime
from polyhead_server.errors import (
    DeviceError,
    DrainingError,
    InvalidRequestError,
    StartError,
    UnknownModelError,
    UnsupportedError,
)
from polyhead_server.remote import RemoteFolder

X = np.arange(48, dtype=np.float32).reshape(1, 3, 16) / 48
LONG = np.random.default_rng(5).standard_normal((1, 300, 16)).astype(np.float32)


def infer_request(x: Any = X, model: str = "tiny", output: str = "output") -> bytes:
    return Running.request(model, {"x": x}, outputs=[output]).SerializeToString()


def output_of(reply: bytes) -> Any:
    return np.frombuffer(pb.ModelInferResponse.FromString(reply).raw_output_contents[0], np.float32)


@asynccontextmanager
async def loaded(
    models: Path | RemoteFolder, families: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Runtime]:
    """A runtime that has loaded, for a block."""
    async with Runtime(quick_settings(models, **settings), families=families) as runtime:
        await runtime.loaded()
        yield runtime


async def ask(runtime: Runtime, procedure: str, request: Any = None) -> Any:
    rpc = RPCS[procedure]
    payload = (request or rpc.request()).SerializeToString()
    return rpc.response.FromString(await runtime.call(procedure, payload))


# ---- Requests ----------------------------------------------------------------------------------


async def test_the_example_in_the_documents_works(repository: Path) -> None:
    example = block("docs/operations.md", "async def answer")
    names: dict[str, Any] = {}
    exec(example.replace('"models"', repr(str(repository))), names)

    assert output_of(await names["answer"](infer_request())).shape == (X.size,)


async def test_every_procedure_is_answered(repository: Path) -> None:
    async with loaded(repository) as runtime:
        assert (await ask(runtime, "ServerLive")).live
        assert (await ask(runtime, "ServerReady")).ready
        assert (await ask(runtime, "ServerMetadata")).name == "polyhead"
        assert (await ask(runtime, "ModelReady", pb.ModelReadyRequest(name="tiny"))).ready
        assert (await ask(runtime, "ModelMetadata", pb.ModelMetadataRequest(name="tiny"))).name == "tiny"
        config = await ask(runtime, "ModelConfig", pb.ModelConfigRequest(name="tiny"))
        assert config.config.name == "tiny"
        await runtime.infer(infer_request())
        statistics = await ask(runtime, "ModelStatistics", pb.ModelStatisticsRequest(name="tiny"))
        assert statistics.model_stats[0].inference_stats.success.count == 1
        assert {model.state for model in (await ask(runtime, "RepositoryIndex")).models} == {"READY"}


async def test_long_text_is_cut_where_the_server_is_set_so(repository: Path) -> None:
    async with loaded(repository, ["tiny-tokens"], truncate=True) as runtime:

        def asked(**parameters: bool) -> bytes:
            texts = {"text": ["cat " * 50]}
            request = Running.request("tiny-tokens", texts, outputs=["lengths"], parameters=parameters)
            return request.SerializeToString()

        reply = pb.ModelInferResponse.FromString(await runtime.infer(asked()))
        assert np.frombuffer(reply.raw_output_contents[0], np.int32).tolist() == [16]
        with pytest.raises(InvalidRequestError, match=r"text\[0\] must be at most 16 tokens, was 52"):
            await runtime.infer(asked(truncate=False))


async def test_errors_are_raised_as_they_are(repository: Path) -> None:
    async with loaded(repository) as runtime:
        with pytest.raises(UnknownModelError, match="'other' is not served here"):
            await runtime.infer(infer_request(model="other"))
        with pytest.raises(UnknownModelError):
            await ask(runtime, "ModelMetadata", pb.ModelMetadataRequest(name="other"))
        with pytest.raises(InvalidRequestError, match=r"must be a inference\.ModelConfigRequest message"):
            await runtime.call("ModelConfig", b"\xff")
        for procedure in ("ModelInfer", "Other"):
            with pytest.raises(UnsupportedError, match=f"procedure must be one of .*, was '{procedure}'"):
                await runtime.call(procedure, b"")
        with pytest.raises(InvalidRequestError):
            await runtime.stream(b"\xff", collect([]))
        assert runtime.lifecycle.accepted == runtime.budget.bytes == 0


def collect(messages: list[bytes]) -> Callable[[bytes], Coroutine[Any, Any, None]]:
    """Return a function that takes the messages of a stream."""

    async def send(message: bytes) -> None:
        messages.append(message)

    return send


async def test_a_stream_answers_whole_or_in_parts_and_may_be_left_early(repository: Path) -> None:
    async with loaded(repository, max_reply_bytes=2**20) as runtime:
        whole: list[bytes] = []
        await runtime.stream(infer_request(), collect(whole))
        (reply,) = map(pb.ModelStreamInferResponse.FromString, whole)
        assert reply.infer_response.raw_output_contents[0] == (
            output_of(await runtime.infer(infer_request())).tobytes()
        )

        request = pb.ModelInferRequest.FromString(infer_request(LONG, "tiny.attention", "attention.0"))
        request.parameters["parts"].bool_param = True
        parts: list[bytes] = []
        await runtime.stream(request.SerializeToString(), collect(parts))
        assert len(parts) > 1

        first = asyncio.get_running_loop().create_future()

        async def stand_still(message: bytes) -> None:
            first.set_result(message)
            await asyncio.Event().wait()

        stream = asyncio.ensure_future(runtime.stream(request.SerializeToString(), stand_still))
        assert await first == parts[0]
        assert runtime.lifecycle.accepted == 1
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert runtime.lifecycle.accepted == runtime.budget.bytes == 0


async def test_a_large_reply_counts_as_held_until_it_is_sent(repository: Path) -> None:
    request = infer_request(LONG, "tiny.attention", "attention.0")
    releases: list[Callable[[], None]] = []

    async with loaded(repository) as runtime:
        reply = await runtime.infer(request, until_sent=releases.append)
        assert runtime.budget.bytes >= len(reply)
        releases.pop()()
        assert runtime.budget.bytes == 0
        await runtime.infer(request)
        with pytest.raises(ZeroDivisionError):
            await runtime.infer(request, until_sent=lambda _release: 1 / 0)
        assert runtime.budget.bytes == 0
        await runtime.infer(infer_request(), until_sent=releases.append)  # small
        assert not releases
        assert runtime.budget.bytes == 0


async def test_two_runtimes_serve_side_by_side(repository: Path) -> None:
    async with (
        Runtime(quick_settings(repository)) as one,
        Runtime(quick_settings(repository)) as other,
    ):
        await asyncio.gather(one.loaded(), other.loaded())
        replies = await asyncio.gather(*(each.infer(infer_request()) for each in (one, other, other)))
        assert len({output_of(reply).tobytes() for reply in replies}) == 1
        for runtime, count in ((one, 1), (other, 2)):
            statistics = await ask(runtime, "ModelStatistics", pb.ModelStatisticsRequest(name="tiny"))
            assert statistics.model_stats[0].inference_stats.success.count == count
        await one.close()
        with pytest.raises(DrainingError):
            await one.infer(infer_request())
        assert output_of(await other.infer(infer_request())).shape == (X.size,)


# ---- Start -------------------------------------------------------------------------------------


async def test_without_a_model_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad" / "tiny" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "tiny" / "1" / "manifest.json").write_text("{}")
    (tmp_path / "empty").mkdir()

    for models, why in (
        ("bad", r"no model could be loaded: tiny 1: manifest\.json is not valid"),
        ("none", "--models must be a folder that can be read"),
        ("empty", "--models must hold at least one model"),
    ):
        with pytest.raises(StartError, match=why):
            async with loaded(tmp_path / models):
                pass


def test_a_device_that_does_not_work_is_found_first(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(device: str) -> Any:
        raise DeviceError(f"--device {device} does not work here")

    monkeypatch.setattr("polyhead_server.runtime.choose_device", choose)
    with pytest.raises(DeviceError, match="--device cuda does not work here"):
        Runtime(quick_settings(repository, device="cuda"))


async def test_who_waits_for_models_of_a_closed_runtime_learns_of_it(repository: Path) -> None:
    runtime = Runtime(quick_settings(repository))
    with pytest.raises(RuntimeError, match="must be started"):
        await runtime.loaded()
    await runtime.start()
    await runtime.start()  # which changes nothing
    waiting = asyncio.create_task(runtime.loaded())
    await asyncio.sleep(0)
    await runtime.close()
    with pytest.raises(StartError, match="closed before its models were loaded"):
        await waiting


# ---- End ---------------------------------------------------------------------------------------


async def test_closed_under_load_every_accepted_request_is_answered(repository: Path, gate: Gate) -> None:
    async with loaded(repository) as runtime:
        with gate.closed():
            request = infer_request()
            calls = [asyncio.create_task(runtime.infer(request)) for _ in range(20)]
            await reached(lambda: runtime.lifecycle.accepted == 20)
            closing = asyncio.create_task(runtime.close())
            await reached(runtime.lifecycle.draining.is_set)
            with pytest.raises(DrainingError):
                await runtime.infer(request)
            assert not closing.done()
        replies = await asyncio.gather(*calls)
        await closing
        assert {output_of(reply).size for reply in replies} == {X.size}
