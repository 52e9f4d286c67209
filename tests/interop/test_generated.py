"""A client that is generated from the OpenAPI document, in an environment of its own."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
from tests.interop.conftest import CLIENTS_PYTHON, TEXTS, TOKEN, needs_clients
from tests.numerics import close
from tests.server.http.conftest import over_http

from polyhead_client import Client

QUERY = "the cat"


@needs_clients
def test_a_generated_client_gets_what_grpc_gives(repository: Path, scorers: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "tiny-tokens", tmp_path / "models" / "tiny-tokens")
    shutil.copytree(scorers / "reranker", tmp_path / "models" / "reranker")
    (tmp_path / "tokens").write_text(TOKEN)
    document, script = tmp_path / "openapi.json", Path(__file__).with_name("generated_calls.py")

    with over_http(tmp_path / "models", token_file=tmp_path / "tokens") as web:
        document.write_bytes(web.get("/openapi.json", Authorization=f"Bearer {TOKEN}").body)
        made = subprocess.run(
            [
                *(CLIENTS_PYTHON.with_name("openapi-python-client"), "generate", "--path", document),
                *("--output-path", tmp_path / "generated", "--meta", "none", "--fail-on-warning"),
            ],
            env={**os.environ, "PATH": f"{CLIENTS_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"},
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        called = subprocess.run(
            [CLIENTS_PYTHON, script, f"http://127.0.0.1:{web.port}", TOKEN],
            input=json.dumps([QUERY, *TEXTS]),
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        with Client(web.running.address, token=TOKEN) as client:
            vectors = client.encode(TEXTS, model="tiny-tokens").pooled
            ranked = client.rerank(QUERY, TEXTS, model="reranker")

    operations = json.loads(document.read_bytes())["paths"].values()
    assert len(list((tmp_path / "generated" / "api" / "default").glob("[a-z]*.py"))) == sum(
        map(len, operations)
    )
    assert called.returncode == 0, called.stderr
    got = json.loads(called.stdout)
    assert vectors is not None
    close(np.array(got["vectors"], np.float32), vectors)
    close(np.array(got["pooled"], np.float32).reshape(vectors.shape), vectors)
    assert [index for index, _ in got["ranks"]] == [one.index for one in ranked]
    np.testing.assert_allclose([score for _, score in got["ranks"]], [one.score for one in ranked], atol=1e-6)
    assert "none" in got["refused"]
