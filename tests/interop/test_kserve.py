"""An unmodified `kserve`, in an environment of its own, against `polyhead serve`."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.interop.conftest import LENGTHS, TEXTS, TOKEN, X, call
from tests.numerics import close
from tests.server.http.conftest import OverHttp

from polyhead_client import Client

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("POLYHEAD_KSERVE_VENV", ROOT / ".venv-kserve"))

pytestmark = pytest.mark.skipif(
    not any(ENVIRONMENT.glob("lib/python*/site-packages/kserve")),
    reason=f"no environment with kserve at {ENVIRONMENT} (POLYHEAD_KSERVE_VENV names another)",
)


def test_its_clients_work_on_every_path(address: str, locked: OverHttp, given: Path, tmp_path: Path) -> None:
    got, url = tmp_path / "got.npz", f"http://127.0.0.1:{locked.port}"
    with Client(address) as client:
        client.wait_until_ready("tiny.attention")
        client.wait_until_ready("tiny-tokens")
        vectors = client.encode(X, lengths=LENGTHS, model="tiny", attention=True)
        texts = client.encode(TEXTS, model="tiny-tokens")

    call(ENVIRONMENT / "bin" / "python", "kserve_calls.py", address, url, TOKEN, given, got)

    assert texts.pooled is not None
    with np.load(got) as arrays:
        for name in ("raw", "typed", "rest raw", "rest typed"):
            close(arrays[name], vectors.output)
        for name in ("heads", "rest heads"):
            close(arrays[name], vectors.attention[1][:, [3, 0]], scale=1)
        for name in ("texts", "texts_as_a_column", "rest texts", "rest texts_as_a_column"):
            close(arrays[name], texts.pooled)
