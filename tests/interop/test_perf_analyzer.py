"""An unmodified `perf_analyzer` against `polyhead serve`, where one is installed."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from polyhead_client import Client

ROOT = Path(__file__).parents[2]
PERF_ANALYZER = Path(
    os.environ.get("POLYHEAD_PERF_ANALYZER", ROOT / ".venv-triton" / "bin" / "perf_analyzer")
)

pytestmark = pytest.mark.skipif(
    not PERF_ANALYZER.exists(),
    reason=f"no perf_analyzer at {PERF_ANALYZER}: it wants Linux on x86-64 with glibc 2.38 or newer "
    "(POLYHEAD_PERF_ANALYZER names another)",
)

REQUESTS = 12
TEXTS = [{"text": ["the cat sat"]}, {"text": ["a small dog ran."]}, {"text": ["i saw that"]}]
IDS = [
    {"input_ids": {"content": [2, 6, 7, 3], "shape": [4]}},
    {"input_ids": {"content": [2, 6, 3, 0], "shape": [4]}, "lengths": [3]},
]
X = [{"x": {"content": [0.5] * 96, "shape": [6, 16]}, "lengths": [4]}]


@pytest.mark.parametrize(
    ("model", "data", "options"),
    [
        # It makes up values for every input, lengths too, which must be in range: zeros are.
        ("tiny", None, ["--shape", "x:6,16", "--input-data", "zero"]),
        ("tiny.attention", None, ["--shape", "x:6,16", "--input-data", "zero", "-b", "4"]),
        ("tiny", None, ["--shape", "x:6,16", "--input-data", "zero", "--streaming"]),
        ("tiny", None, ["--shape", "x:6,16", "--input-data", "zero", "--request-rate-range", "10"]),
        ("tiny-masked", None, ["--shape", "x:6,16", "--shape", "mask:6,6", "--input-data", "zero"]),
        ("tiny", X, ["-b", "2"]),
        ("tiny-tokens", TEXTS, []),
        ("tiny-tokens", TEXTS, ["-b", "4", "--concurrency-range", "2"]),
        ("tiny-tokens.attention", TEXTS, ["--streaming"]),
        ("tiny-tokens", TEXTS, ["--request-rate-range", "10"]),
        ("tiny-tokens", IDS, []),
    ],
)
def test_it_measures_every_kind_of_model(
    address: str, tmp_path: Path, model: str, data: Any, options: list[str]
) -> None:
    if data is not None:
        path = tmp_path / "data.json"
        path.write_text(json.dumps({"data": data}))
        options = [*options, "--input-data", str(path)]
    with Client(address) as client:
        client.wait_until_ready(model)
    arguments = ["-i", "grpc", "-u", address, "-m", model, "--request-count", str(REQUESTS), *options]

    done = subprocess.run(
        [PERF_ANALYZER, *arguments], check=False, capture_output=True, text=True, timeout=600
    )

    assert done.returncode == 0, done.stdout + done.stderr
    answered = re.search(r"Successful request count: (\d+)", done.stdout)
    assert answered, done.stdout
    assert int(answered[1]) >= REQUESTS
