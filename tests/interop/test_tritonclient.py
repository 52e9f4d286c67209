"""An unmodified `tritonclient`, in an environment of its own, against `polyhead serve`."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop.conftest import LENGTHS, TEXTS, TOKEN, X, call
from tests.numerics import close
from tests.server.http.conftest import OverHttp

from polyhead_client import Client

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("POLYHEAD_TRITON_PYTHON", ROOT / ".venv-triton" / "bin" / "python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no environment with tritonclient at {PYTHON} (POLYHEAD_TRITON_PYTHON names another)",
)


@pytest.mark.parametrize("first", ["polyhead", "triton"])
def test_every_call_works_whichever_client_is_imported_first(address: str, first: str) -> None:
    assert call(PYTHON, "tritonclient_calls.py", address, first, TOKEN) == "all calls worked\n"


def test_every_call_works_over_http(locked: OverHttp, given: Path, tmp_path: Path) -> None:
    got = tmp_path / "got.npz"
    with Client(locked.running.address, token=TOKEN) as client:
        vectors = client.encode(X, lengths=LENGTHS, model="tiny", attention=True)
        texts = client.encode(TEXTS, model="tiny-tokens")
    assert texts.tokens is not None
    weights = vectors.attention[1][:, [3, 0], 1:3]
    padded = [[*row, *[""] * (max(map(len, texts.tokens)) - len(row))] for row in texts.tokens]
    # What is expected, its scale, and what fewer bits take off: half a unit in the last place.
    expected: dict[str, tuple[Any, float | None, float]] = {
        "vectors": (vectors.output, None, 0),
        "encoded": (vectors.output, None, 0),
        "weights FP32": (weights, 1, 0),
        "weights FP16": (weights, 1, 2**-12),
        "weights UINT8": (weights * 255, 255, 0.5),
        "pooled": (texts.pooled, None, 0),
    }

    call(PYTHON, "tritonclient_http_calls.py", f"127.0.0.1:{locked.port}", TOKEN, given, got)

    with np.load(got) as arrays:
        for name, array in arrays.items():
            if name.startswith("tokens"):
                assert array.tolist() == padded
                continue
            (key,) = (key for key in expected if name.startswith(key))
            value, scale, extra = expected[key]
            close(array, value, scale=scale, extra=extra)
        assert len(arrays) == 4 + 9 + 6 + 4 + 8 + 1
