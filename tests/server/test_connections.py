"""Limits on connections, and what a client may do on one."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from polyhead_server import Settings
from polyhead_server.connections import server_options

LIVE = "/inference.GRPCInferenceService/ServerLive"
ALONE = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


def test_settings_become_options() -> None:
    options = dict(
        server_options(
            Settings(
                models=Path("models"),
                max_concurrent_streams=7,
                max_connections=0,
                keepalive_seconds=0,
                max_connection_age_seconds=1.5,
                min_ping_seconds=0.25,
            ),
            reuse_port=True,
        )
    )

    assert options["grpc.max_concurrent_streams"] == 7
    assert options["grpc.max_connection_age_ms"] == 1500
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 250
    assert options["grpc.so_reuseport"] == 1
    assert "grpc.max_allowed_incoming_connections" not in options
    assert "grpc.keepalive_time_ms" not in options


def test_by_default_connections_do_not_age_and_ports_are_not_shared() -> None:
    options = dict(server_options(Settings(models=Path("models"))))

    assert options["grpc.so_reuseport"] == 0
    assert "grpc.max_connection_age_ms" not in options


def test_one_connection_too_many_is_closed(serve: Any) -> None:
    server = serve(max_connections=2)
    server.call("ServerLive")
    with (
        grpc.insecure_channel(server.address, ALONE) as second,
        grpc.insecure_channel(server.address, ALONE) as third,
    ):
        live: Any = second.unary_unary(LIVE)
        live(b"", timeout=30)
        method: Any = third.unary_unary(LIVE)
        with pytest.raises(grpc.RpcError) as caught:
            method(b"", timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert server.call("ServerLive").live


def test_headers_that_are_too_large_are_refused_and_others_go_on(serve: Any) -> None:
    server = serve(max_header_bytes=4096)
    with pytest.raises(grpc.RpcError) as caught:
        server.call("ServerLive", metadata=(("x-large", "x" * 8000),))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.call("ServerLive", metadata=(("x-small", "x" * 1000),)).live


def test_an_old_connection_is_replaced_without_a_failed_call(serve: Any) -> None:
    server = serve(max_connection_age_seconds=0.2)
    x = {"x": np.ones((1, 3, 16), np.float32)}
    connected: list[grpc.ChannelConnectivity] = []
    server.channel.subscribe(connected.append)

    while connected.count(grpc.ChannelConnectivity.READY) < 3:
        assert server.infer("tiny", x)["output"].shape == (1, 3, 16)
