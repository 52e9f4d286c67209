"""The OpenAPI document and what is answered, compared by a property tester, schemathesis.

`POLYHEAD_TEST_FUZZ=500` sends so many examples to each path, instead of a few.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.exceptions import RequestValidationError
from tests.server.http import described_checks
from tests.server.http.conftest import StartHttp

from polyhead_server.errors import InvalidRequestError
from polyhead_server.http import caller
from polyhead_server.http.fields import invalid

EXAMPLES = os.environ.get("POLYHEAD_TEST_FUZZ", "25")

CONFIGURATION = """
# A deadline that has passed is answered with 504, which the document has.
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 504]

# It takes every 400 for a refusal of what is described: `what_is_described_is_accepted` is in its place.
[checks.positive_data_acceptance]
enabled = false
"""


def test_what_is_answered_is_what_is_described(
    serve_over_http: StartHttp,
    repository: Path,
    scorers: Path,
    splade: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = tmp_path / "models"
    for family in (repository / "tiny-tokens", scorers / "reranker", splade / "models" / "splade"):
        shutil.copytree(family, models / family.name)
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)

    def marked(error: RequestValidationError) -> InvalidRequestError:
        return InvalidRequestError(f"{described_checks.NOT_DESCRIBED}{invalid(error)}")

    monkeypatch.setattr(caller, "invalid", marked)
    web = serve_over_http(models)
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "--config-file",
        str(configuration),
        "run",
    ]

    done = subprocess.run(
        [
            *(*command, f"http://127.0.0.1:{web.port}/openapi.json", "--phases", "examples,coverage,fuzzing"),
            *("--max-examples", EXAMPLES, "--seed", "1", "--no-color", "--continue-on-failure"),
        ],
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(Path(described_checks.__file__))},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert web.running.runtime.budget.bytes == 0
