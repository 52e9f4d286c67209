"""`polyhead serve --checkpoint`: from a folder to answers over gRPC and HTTP, and again without an export."""

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import sentence_transformer, write_checkpoint
from tests.servers import ServerProcess

from polyhead_client import Client


@pytest.mark.slow
def test_one_command_serves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_checkpoint(tmp_path / "bert", "bert", num_hidden_layers=1)
    folder = tmp_path / "sentences"
    sentence_transformer(tmp_path / "bert", pooling="cls", normalise=True).save(str(folder))
    flags = ("--checkpoint", str(folder), "--device", "cpu", "--port", "0", "--http", "--http-port", "0")

    vectors: list[Any] = []
    for start in range(2):
        server = ServerProcess(*flags)
        try:
            http = server.until(r"inference over HTTP on (http://\S+)/v2")[1]
            address = server.until(r"serving sentences v1 on (\S+) with")[1]
            assert ("tracing" in server.log) is (start == 0)
            with Client(address) as client:
                encoding = client.encode("the cat sat", attention=True)
            pooled: Any = encoding.pooled
            vectors.append(pooled)
            body = json.dumps({"inputs": "the cat sat"}).encode()
            request = urllib.request.Request(f"{http}/embed", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=240) as answered:
                np.testing.assert_allclose(json.load(answered)[0], pooled, atol=1e-6)
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 0
        finally:
            server.close()
    np.testing.assert_array_equal(vectors[0], vectors[1])
