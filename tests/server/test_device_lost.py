"""A device that fails for good: the server says so, and ends with a code that asks for a new start."""

import asyncio
from pathlib import Path

import grpc
import numpy as np
import onnxruntime as ort
import pytest
from tests.server.conftest import Running, Served

from polyhead_proto import RPCS
from polyhead_server.process import LOST

X = np.ones((1, 3, 16), np.float32)


def fail(*_arguments: object) -> None:
    raise RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; expr=launch")


async def test_the_caller_may_try_elsewhere_and_the_process_ends(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(repository, monkeypatch, http_port="off")
    await served.until_ready()
    monkeypatch.setattr(ort.InferenceSession, "run", fail)
    request = Running.request("tiny.attention", {"x": X})
    async with grpc.aio.insecure_channel(served.address, [("grpc.enable_retries", 0)]) as channel:
        rpc = RPCS["ModelInfer"]
        method = channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request, timeout=120)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the device failed" in str(caught.value.details())
    assert "CUDA" not in str(caught.value.details())
    assert await asyncio.wait_for(served.process, 240) == LOST
    assert not served.server.runtime.lifecycle.ready
    assert "tiny.attention: the device is lost: CUDA failure 700" in caplog.text
    assert "the device failed for good" in caplog.text
