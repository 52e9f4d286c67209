"""The event loop answers small calls while a large message is read, computed or written."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from polyhead_server.engine.engine import Engine
from polyhead_server.inference import inference

REPLY_MIB = 16


@pytest.mark.parametrize(
    ("where", "stage"), [(inference, "read"), (Engine, "run"), (inference, "make_reply")]
)
def test_health_checks_do_not_wait_for_large_messages(
    where: Any, stage: str, serve: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(where, stage)
    loaded, begun, checked = threading.Event(), threading.Event(), threading.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        if loaded.is_set():
            begun.set()
            assert checked.wait(240)
        return real(*arguments, **options)

    monkeypatch.setattr(where, stage, held)
    running = serve(models=repository)
    loaded.set()
    x = np.random.default_rng(0).standard_normal((1, 2100, 16), np.float32)
    outputs = {"attention.0": {"dtype": "UINT8"}}
    request = running.request("tiny.attention", {"x": x}, outputs=outputs)
    channel = grpc.insecure_channel(running.address)
    check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")

    with channel, ThreadPoolExecutor(1) as caller:
        reply = caller.submit(running.call, "ModelInfer", request)
        try:
            assert begun.wait(240)
            check(b"", timeout=120)
            assert not reply.done()
        finally:
            checked.set()
        assert reply.result().ByteSize() > REPLY_MIB * 2**20
