"""A device that fails for good: the server says so, and ends with a code that asks for a new start."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import pytest
from tests.servers import quick_settings

import polyhead_server.process
from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_server import GrpcServer, create_server
from polyhead_server.process import LOST, serve

X = np.ones((1, 3, 16), np.float32)


def fail(*_arguments: object) -> None:
    raise RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; expr=launch")


def test_the_caller_may_try_elsewhere_and_the_process_ends(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        made: asyncio.Future[tuple[GrpcServer, int]] = asyncio.get_running_loop().create_future()

        async def create(*arguments: Any, **options: Any) -> tuple[GrpcServer, int]:
            made.set_result(await create_server(*arguments, **options))
            return made.result()

        monkeypatch.setattr(polyhead_server.process, "create_server", create)
        process = asyncio.create_task(serve(quick_settings(repository, http_port="off")))
        server, port = await made
        while not server.runtime.lifecycle.ready:  # noqa: ASYNC110 - `serve` starts it
            await asyncio.sleep(0.01)
        monkeypatch.setattr(ort.InferenceSession, "run", fail)
        request = pb.ModelInferRequest(model_name="tiny.attention", raw_input_contents=[X.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=X.shape)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_retries", 0)]) as channel:
            rpc = RPCS["ModelInfer"]
            method = channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(request, timeout=120)

        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the device failed" in str(caught.value.details())
        assert "CUDA" not in str(caught.value.details())
        assert await asyncio.wait_for(process, 240) == LOST
        assert not server.runtime.lifecycle.ready

    asyncio.run(test())

    assert "tiny.attention: the device is lost: CUDA failure 700" in caplog.text
    assert "the device failed for good" in caplog.text
