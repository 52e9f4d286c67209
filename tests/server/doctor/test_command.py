"""`polyhead doctor` on this machine."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from polyhead_client.command import main
from polyhead_server.doctor.command import app
from polyhead_server.doctor.display import show
from polyhead_server.doctor.examination import examine
from polyhead_server.doctor.machine import this_machine

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command; its status and what it printed, in one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = app(arguments, result_action="return_value")
        assert isinstance(status, int)
        return status, " ".join(capsys.readouterr().out.split())

    return run


def test_the_cpu_works(doctor: Doctor) -> None:
    status, text = doctor("--device", "cpu")

    assert status == 0
    assert "works: --device cpu runs on cpu" in text


def test_json_is_for_programs(doctor: Doctor, repository: Path) -> None:
    status, text = doctor("--json", "--device", "cpu", "--models", str(repository), "tiny")

    facts = json.loads(text)
    assert status == 0
    assert (facts["works"], facts["chosen"], facts["asked"]) == (True, "cpu", "cpu")
    assert [graph["model"] for graph in facts["graphs"]] == ["tiny", "tiny.attention"]
    assert facts["runtime"]["packages"] == ["onnxruntime-gpu"]


def test_graphs_are_shown_with_their_operators(repository: Path) -> None:
    console = Console(width=240, record=True, file=io.StringIO())
    show(examine(this_machine(), "cpu", models=repository, name="tiny"), console)

    text = console.export_text()
    assert "fused (2 MultiHeadAttention)" in text
    assert "explicit (2 Softmax)" in text
    assert "tiny on CPU: " in text


def test_a_name_without_a_repository_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tiny"]) == 1
    assert capsys.readouterr().err == "polyhead doctor: --models must say which repository has 'tiny'\n"


def test_an_unknown_model_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cpu", "--models", str(repository), "absent"]) == 1
    assert "has no model 'absent'" in capsys.readouterr().err
