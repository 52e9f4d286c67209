"""Limits on connections, and what a client may do on one."""

import re
import socket
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server.conftest import fails, procedure
from tests.waiting import PATIENCE

from polyhead_server import Settings
from polyhead_server.errors import StartError
from polyhead_server.grpc.call import Call, deadline_of
from polyhead_server.grpc.server import DEFAULTS, server_options

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
X = np.ones((1, 3, 16), np.float32)
ALONE = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


def options(*given: str, reuse_port: bool = False, **settings: Any) -> dict[str, int | str]:
    """The server's options, with these changed."""
    one = Settings(models=Path("models"), grpc_option=given, **settings)
    return dict(server_options(one, reuse_port=reuse_port))


def test_defaults_are_safe_and_an_option_replaces_its_own() -> None:
    plain, changed = options(), options("grpc.max_connection_age_ms=1500", "grpc.keepalive_time_ms=7")

    assert plain.items() >= DEFAULTS.items()
    assert changed == plain | {"grpc.max_connection_age_ms": 1500, "grpc.keepalive_time_ms": 7}


def test_an_option_that_belongs_to_another_follows_it_unless_it_is_given() -> None:
    names = ("grpc.max_concurrent_streams", "grpc.http2.max_deallocating_streams")

    assert [options("grpc.max_concurrent_streams=7")[name] for name in names] == [7, 14]
    assert [options(f"{names[0]}=7", f"{names[1]}=9")[name] for name in names] == [7, 9]
    assert options(f"{names[0]}=2147483647")[names[1]] == 2147483647
    assert options("grpc.max_metadata_size=4096")["grpc.absolute_max_metadata_size"] == 4096
    assert options("grpc.server.max_pending_requests=5")["grpc.server.max_pending_requests_hard_limit"] == 5


def test_the_grace_of_an_old_connection_is_as_long_as_a_request_may_take() -> None:
    name = "grpc.max_connection_age_grace_ms"

    assert DEFAULTS[name] > 1000 * Settings(models=Path()).max_request_seconds
    assert options(max_request_seconds=7200.5)[name] == 7_200_500
    assert options(max_request_seconds=1e9)[name] == 2147483647
    assert options(f"{name}=7")[name] == 7


def test_no_limit_on_connections_is_no_option_for_grpc_aborts_on_one() -> None:
    assert "grpc.max_allowed_incoming_connections" not in options(
        "grpc.max_allowed_incoming_connections=2147483647"
    )


def test_what_other_settings_say_becomes_options() -> None:
    found = options(max_request_bytes=2048, max_reply_bytes=4096, reuse_port=True)

    assert found["grpc.max_receive_message_length"] == 2048
    assert found["grpc.max_send_message_length"] == 4096
    assert found["grpc.so_reuseport"] == 1
    assert options()["grpc.so_reuseport"] == 0


def test_a_number_must_be_one() -> None:
    with pytest.raises(StartError, match="max_concurrent_streams must be a whole number, was 'many'"):
        options("grpc.max_concurrent_streams=many")


def test_the_documentation_lists_the_defaults() -> None:
    documented = dict(re.findall(r"^\| `(grpc\.\S+)` \| ([\d,]+) \|", OPERATIONS.read_text(), re.M))

    assert {name: int(value.replace(",", "")) for name, value in documented.items()} == DEFAULTS


def test_one_connection_too_many_is_closed(serve: Any) -> None:
    server = serve(grpc_option=["grpc.max_allowed_incoming_connections=2"])
    server.call("ServerLive")
    with (
        grpc.insecure_channel(server.address, ALONE) as second,
        grpc.insecure_channel(server.address, ALONE) as third,
    ):
        procedure(second, "ServerLive")(b"", timeout=120)
        with fails(grpc.StatusCode.UNAVAILABLE):
            procedure(third, "ServerLive")(b"", timeout=120)
    assert server.call("ServerLive").live


def test_connections_that_stay_silent_make_room_again(
    serve: Any,
) -> None:
    server = serve(
        grpc_option=["grpc.max_allowed_incoming_connections=2", "grpc.server_handshake_timeout_ms=500"]
    )
    host, port = server.address.split(":")
    silent = [socket.create_connection((host, int(port)), timeout=120) for _ in range(2)]

    for connection in silent:
        while connection.recv(1024):  # until the server closes it
            pass
        connection.close()

    assert server.call("ServerLive", wait_for_ready=True).live


def test_connections_without_calls_make_room_again(serve: Any) -> None:
    """Their clients are there, and answer pings."""
    server = serve(
        grpc_option=["grpc.max_allowed_incoming_connections=2", "grpc.max_connection_idle_ms=1000"]
    )
    with (
        grpc.insecure_channel(server.address, ALONE) as first,
        grpc.insecure_channel(server.address, ALONE) as second,
        grpc.insecure_channel(server.address, ALONE) as third,
    ):
        for channel in (first, second, third, first):
            procedure(channel, "ServerLive")(b"", timeout=120, wait_for_ready=True)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The connections that inference requests came by."""
    seen: set[str] = set()

    def deadline_of_seen(call: Call) -> float:
        seen.add(call.peer())
        return deadline_of(call)

    monkeypatch.setattr("polyhead_server.grpc.service.deadline_of", deadline_of_seen)
    return seen


def test_an_old_connection_is_replaced_without_a_failed_call(serve: Any, peers: set[str]) -> None:
    server = serve(grpc_option=["grpc.max_connection_age_ms=200"])
    end = time.monotonic() + PATIENCE

    while len(peers) < 3:
        assert time.monotonic() < end
        assert server.infer("tiny", {"x": X})["output"].shape == X.shape
