"""A client that is generated from the OpenAPI document, in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
from tests.interop.conftest import CLIENTS_PYTHON, TEXTS, TOKEN, call, needs_clients
from tests.numerics import close
from tests.server.http.conftest import OverHttp

from polyhead_client import Client

QUERY = "the cat"


@needs_clients
def test_a_generated_client_gets_what_grpc_gives(web: OverHttp, tmp_path: Path) -> None:
    document, folder = tmp_path / "openapi.json", tmp_path / "generated"
    document.write_bytes(web.get("/openapi.json", Authorization=f"Bearer {TOKEN}").body)
    with Client(web.running.address, token=TOKEN) as client:
        vectors = client.encode(TEXTS, model="tiny-tokens").pooled
        ranked = client.rerank(QUERY, TEXTS, model="reranker")

    made = subprocess.run(
        [
            *(CLIENTS_PYTHON.with_name("openapi-python-client"), "generate", "--path", document),
            *("--output-path", folder, "--meta", "none", "--fail-on-warning"),
        ],
        env={**os.environ, "PATH": f"{CLIENTS_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    answer = call(
        CLIENTS_PYTHON,
        "generated_calls.py",
        f"http://127.0.0.1:{web.port}",
        TOKEN,
        given=json.dumps([QUERY, *TEXTS]),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    operations = json.loads(document.read_bytes())["paths"].values()
    assert len(list((folder / "api" / "default").glob("[a-z]*.py"))) == sum(map(len, operations))
    got = json.loads(answer)
    assert vectors is not None
    close(np.array(got["vectors"], np.float32), vectors)
    close(np.array(got["pooled"], np.float32).reshape(vectors.shape), vectors)
    assert [index for index, _ in got["ranks"]] == [one.index for one in ranked]
    np.testing.assert_allclose([score for _, score in got["ranks"]], [one.score for one in ranked], atol=1e-6)
    assert "none" in got["refused"]
