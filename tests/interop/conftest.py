"""Servers for clients that others wrote."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.server.http.conftest import OverHttp, over_http
from tests.servers import ServerProcess

ROOT = Path(__file__).parents[2]
CLIENTS_PYTHON = Path(
    os.environ.get("POLYHEAD_CLIENTS_PYTHON", ROOT / ".venv-http-clients" / "bin" / "python")
)

needs_clients = pytest.mark.skipif(
    not CLIENTS_PYTHON.exists(),
    reason=f"no environment with HTTP clients at {CLIENTS_PYTHON} (POLYHEAD_CLIENTS_PYTHON names another)",
)

TOKEN = "a-token-for-management"

X = np.random.default_rng(6).normal(size=(3, 6, 16)).astype(np.float32)
LENGTHS = np.array([6, 2, 5], np.int32)
TEXTS = ["the cat sat", "a small dog"]


def call(
    python: Path, script: str, *arguments: object, given: str = "", env: Mapping[str, str] = os.environ
) -> str:
    """Runs a script of this folder in another environment, with what it reads; what it writes."""
    words = [str(word) for word in (python, Path(__file__).with_name(script), *arguments)]
    done = subprocess.run(
        words, input=given, env=env, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def web(repository: Path, scorers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverHttp]:
    """A server of an embedder, `tiny-tokens`, and a reranker, which asks for the token."""
    folder = tmp_path_factory.mktemp("retrieval")
    shutil.copytree(repository / "tiny-tokens", folder / "models" / "tiny-tokens")
    shutil.copytree(scorers / "reranker", folder / "models" / "reranker")
    (folder / "tokens").write_text(TOKEN)
    with over_http(folder / "models", token_file=folder / "tokens") as one:
        yield one


@pytest.fixture(scope="module")
def locked(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverHttp]:
    """A server that also answers over HTTP, and asks for the token."""
    tokens = tmp_path_factory.mktemp("tokens") / "callers"
    tokens.write_text(TOKEN)
    with over_http(repository, token_file=tokens) as one:
        yield one


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A file with arrays for a client that runs in another environment."""
    path = tmp_path / "given.npz"
    np.savez(path, x=X, lengths=LENGTHS, text=np.array(TEXTS))
    return path


@pytest.fixture(scope="module")
def address(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server process with the test repository; it must exit cleanly when it is stopped."""
    tokens = tmp_path_factory.mktemp("tokens") / "management"
    tokens.write_text(TOKEN)
    settings = ["--models", str(repository), "--port", "0", "--device", "cpu", "--threads", "1"]
    management = ["--repository-mode", "explicit", "--management-token-file", str(tokens)]
    server = ServerProcess(*settings, *management)
    try:
        # The log's first words say the port; a client waits for the models.
        yield server.until(r"listening on (\S+);")[1]
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0, server.log
    finally:
        server.close()
