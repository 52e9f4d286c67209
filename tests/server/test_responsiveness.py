"""The event loop answers small calls while large ones are computed, written and sent."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig

REPLY_MIB = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with little to compute and much attention to send: 32 heads of T × T."""
    folder = tmp_path_factory.mktemp("wide")
    export_family(Encoder(EncoderConfig(d_model=32, heads=32, layers=1)), "wide", folder)
    return folder


def test_health_checks_do_not_wait_for_large_replies(serve: Any, models: Path) -> None:
    running = serve(models=models)
    x = np.random.default_rng(0).standard_normal((1, 725, 32), np.float32)
    outputs = {"attention.0": {"dtype": "UINT8"}}
    request = running.request("wide.attention", {"x": x}, outputs=outputs)
    assert running.call("ModelInfer", request).ByteSize() > REPLY_MIB * 2**20
    channel = grpc.insecure_channel(running.address)
    check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")

    def seconds(call: Callable[..., object], *arguments: object) -> float:
        start = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - start

    with channel, ThreadPoolExecutor(2) as callers:
        replies = [callers.submit(seconds, running.call, "ModelInfer", request) for _ in range(8)]
        checks: list[float] = []
        while not all(reply.done() for reply in replies):
            checks.append(seconds(check, b""))

    # Were replies computed or written on the loop, most of the time would pass in checks that take as long.
    typical = statistics.median(reply.result() for reply in replies)
    slow = sum(taken for taken in checks if taken > typical / 8)
    assert slow < sum(checks) / 2
