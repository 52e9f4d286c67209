"""An unmodified `tritonclient`, in an environment of its own, against `polyhead serve`."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop.conftest import LENGTHS, TEXTS, TOKEN, X
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
    script = Path(__file__).with_name("tritonclient_calls.py")

    done = subprocess.run(
        [PYTHON, script, address, first, TOKEN], check=False, capture_output=True, text=True, timeout=600
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all calls worked\n"


def test_every_call_works_over_http(locked: OverHttp, given: Path, tmp_path: Path) -> None:
    script, got = Path(__file__).with_name("tritonclient_http_calls.py"), tmp_path / "got.npz"
    with Client(locked.running.address, token=TOKEN) as client:
        vectors = client.encode(X, lengths=LENGTHS, model="tiny", attention=True)
        texts = client.encode(TEXTS, model="tiny-tokens")
    assert vectors.attention is not None
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

    done = subprocess.run(
        [PYTHON, script, f"127.0.0.1:{locked.port}", TOKEN, given, got],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    with np.load(got) as arrays:
        for name, array in arrays.items():
            if name.startswith("tokens"):
                assert array.tolist() == padded
                continue
            (key,) = (key for key in expected if name.startswith(key))
            value, scale, extra = expected[key]
            close(array, value, scale=scale, extra=extra)
        assert len(arrays) == 4 + 9 + 6 + 4 + 8 + 1
