"""`polyhead doctor` on this machine."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from polyhead_client.command import main
from polyhead_server.doctor import machine
from polyhead_server.doctor.command import app
from polyhead_server.doctor.display import show
from polyhead_server.doctor.examination import examine
from polyhead_server.doctor.machine import ThisMachine
from polyhead_server.engine.devices import cuda_problem

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs the command; its status and what it printed, in one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = app(arguments, result_action="return_value")
        assert isinstance(status, int)
        return status, " ".join(capsys.readouterr().out.split())

    return run


def test_the_cpu_works(told: Told) -> None:
    status, text = told("--device", "cpu")

    assert status == 0
    assert "works: --device cpu runs on cpu" in text


def test_cuda_works_exactly_where_a_server_would_start(told: Told) -> None:
    problem = cuda_problem()
    status, text = told("--device", "cuda")

    assert status == (0 if problem is None else 1)
    if problem is not None:
        assert "problem: --device cuda does not work here" in text
        assert "to do:" in text


def test_json_is_for_programs(told: Told, repository: Path) -> None:
    status, text = told("--json", "--device", "cpu", "--models", str(repository), "tiny")

    facts = json.loads(text)
    assert status == 0
    assert (facts["works"], facts["chosen"], facts["asked"]) == (True, "cpu", "cpu")
    assert [graph["model"] for graph in facts["graphs"]] == ["tiny", "tiny.attention"]
    assert facts["runtime"]["packages"] == ["onnxruntime-gpu"]


def test_graphs_are_shown_with_their_operators(repository: Path) -> None:
    console = Console(width=240, record=True, file=io.StringIO())
    show(examine(ThisMachine(), "cpu", models=repository, name="tiny"), console)

    text = console.export_text()
    assert "fused (2 MultiHeadAttention)" in text
    assert "explicit (2 Softmax)" in text
    assert "tiny on CPU: " in text


def test_a_name_without_a_repository_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tiny"]) == 1
    assert capsys.readouterr().err == "polyhead doctor: --models must say which repository has 'tiny'\n"


def test_an_unknown_model_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cpu", "--models", str(repository), "nobody"]) == 1
    assert "has no model 'nobody'" in capsys.readouterr().err


def test_a_library_is_loaded_and_found() -> None:
    assert str(ThisMachine().library("libc.so.6")).endswith("libc.so.6")
    assert ThisMachine().library("libnobody.so.1") is None


def test_this_machines_processors_and_runtime() -> None:
    processors, runtime = ThisMachine().processors(), ThisMachine().runtime()

    assert 1 <= processors.usable <= processors.affinity <= processors.in_machine
    assert "CPUExecutionProvider" in runtime.providers


def test_versions_are_asked_of_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """A library whose functions write 13020, and that knows cuDNN's way."""

        def cuDriverGetVersion(self, pointer: object) -> int:  # noqa: N802
            pointer._obj.value = 13020  # type: ignore[attr-defined]
            return 0

        cudaRuntimeGetVersion = cuDriverGetVersion  # noqa: N815

        def cublasGetProperty(self, index: int, pointer: object) -> int:  # noqa: N802
            pointer._obj.value = (13, 1, 4)[index]  # type: ignore[attr-defined]
            return 0

        def nvrtcVersion(self, major: object, minor: object) -> int:  # noqa: N802
            major._obj.value, minor._obj.value = 13, 5  # type: ignore[attr-defined]
            return 0

        class Version:
            """A function that says 9.13.1."""

            restype: object = None

            def __call__(self) -> int:
                return 91301

        cudnnGetVersion = Version()  # noqa: N815

    monkeypatch.setattr(machine, "_open", lambda name: Library())

    assert ThisMachine().versions() == {
        "driver_cuda": "13.2",
        "cudart": "13.2",
        "nvrtc": "13.5",
        "cublas": "13.1.4",
        "cudnn": "9.13.1",
    }
