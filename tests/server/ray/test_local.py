"""`polyhead serve --engine ray`, also behind HAProxy: Serve's other way from a port to a replica."""

import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server.conftest import fails
from tests.server.ray.conftest import ALONE
from tests.server.ray.test_cluster import LONG, OWN, X, call, request, trailers
from tests.servers import ServerProcess

from polyhead_client import Client
from polyhead_load.sweep.server import free_port
from polyhead_proto import messages as pb
from polyhead_proto.names import PUSHBACK, REQUEST_ID

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")


def started(*arguments: str) -> ServerProcess:
    """A server that serves. Ray waits 30 s for its node and 60 s for its proxy: at times too short."""
    ready, said = "serving tiny, tiny-masked, tiny-tokens on port", ""
    for _ in range(3):
        server = ServerProcess(*arguments)
        try:
            said = server.until(f"{ready}|cannot (start|be used).*", seconds=600)[0]
        except AssertionError:
            server.close()
            raise
        if said == ready:
            return server
        server.close()
        assert "timed out" in said or "not available after" in said, said
    pytest.skip(said)


@pytest.mark.parametrize("haproxy", ["0", pytest.param("1", marks=ALONE)])
def test_what_can_be_loaded_is_served(
    haproxy: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = shutil.copytree(repository, tmp_path / "models")
    with (models / "tiny-masked" / "1" / "model.onnx").open("r+b") as graph:
        graph.write(b"changed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    monkeypatch.setenv("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "0")
    for what in ("HEALTH", "READY"):  # Serve replaces a proxy that is slow
        monkeypatch.setenv(f"RAY_SERVE_PROXY_{what}_CHECK_TIMEOUT_S", "240")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # others may need the machine's memory
    port = free_port()
    settings = ["--models", models.as_uri(), "--host", "0.0.0.0", "--port", str(port), "--threads", "1"]
    server = started("--engine", "ray", *settings)
    try:
        address = f"127.0.0.1:{port}"
        with Client(address) as client, grpc.insecure_channel(address, options=OWN) as channel:
            client.wait_until_ready(timeout=240)
            index = call(channel, "RepositoryIndex", pb.RepositoryIndexRequest()).models
            assert {one.name for one in index if one.state == "READY"} == {
                *("tiny", "tiny.attention", "tiny-tokens", "tiny-tokens.attention")
            }
            broken = {one.name: one.reason for one in index if one.state == "UNAVAILABLE"}
            assert "model.onnx does not have the SHA-256" in broken["tiny-masked"]
            with fails(grpc.StatusCode.UNAVAILABLE, r"tiny-masked cannot be served: model\.onnx") as caught:
                call(channel, "ModelInfer", request("tiny-masked"))
            assert trailers(caught.value)[PUSHBACK] == "-1"
            streamed: Any = client.encode(LONG, model="tiny", attention=[0]).attention  # in parts
            reply = call(channel, "ModelInfer", request("tiny.attention", LONG, "attention.0"))
            whole = np.frombuffer(reply.raw_output_contents[0], np.float32)
            assert whole.nbytes > 5 * 2**20
            np.testing.assert_array_equal(whole, streamed[0].ravel())
            with fails(grpc.StatusCode.INVALID_ARGUMENT, "must be 16, was 3") as caught:
                call(channel, "ModelInfer", request(x=X[:, :, :3]), metadata=[(REQUEST_ID, "mine")])
            assert trailers(caught.value)[REQUEST_ID] == "mine"
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0, server.log
    finally:
        server.close()
