"""`polyhead serve`: where settings come from."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclopts import CycloptsError

import polyhead_server.process
import polyhead_server.workers.supervisor
from polyhead_server import Settings
from polyhead_server.checkpoint import exported
from polyhead_server.command import app
from polyhead_server.errors import StartError
from polyhead_server.observability.logs import flush


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which a server would have run."""
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(polyhead_server.process, "run", run)
    return seen


def run(*tokens: str) -> Any:
    return app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def test_flags_are_read(served: list[Settings]) -> None:
    assert run("--models", "m", "--port", "0", "--max-reply-bytes", "8MiB", "--device", "cpu") == 0

    assert served == [Settings(models=Path("m"), port=0, max_reply_bytes=8 * 2**20, device="cpu")]


def test_the_repository_is_where_exports_go(served: list[Settings]) -> None:
    run()

    assert served == [Settings(models=Path("models"))]


def test_grpc_options_may_be_given_several_times_or_in_the_environment_or_the_file(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('grpc_option = ["grpc.a=1", "grpc.b=x"]\n')

    run("--models", "m", "--grpc-option", "grpc.a=1", "--grpc-option", "grpc.b=x")
    run("--models", "m", "--config", str(file))
    monkeypatch.setenv("POLYHEAD_SERVE_GRPC_OPTION", "grpc.a=1 grpc.b=x")
    run("--models", "m")

    assert served == [Settings(models=Path("m"), grpc_option=("grpc.a=1", "grpc.b=x"))] * 3


def test_a_folder_in_which_other_programs_count_is_left_alone(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "somebody's")

    run("--models", "m")

    assert served
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


@pytest.mark.parametrize(("text", "port"), [("off", "off"), ("auto", "auto"), ("0", 0), ("9", 9)])
def test_the_port_for_metrics_may_be_a_word(served: list[Settings], text: str, port: int | str) -> None:
    run("--models", "m", "--http-port", text)

    assert [settings.http_port for settings in served] == [port]


def test_each_of_several_cards_has_workers(monkeypatch: pytest.MonkeyPatch, served: list[Settings]) -> None:
    seen: list[tuple[int, tuple[int, ...]]] = []

    async def supervise(settings: Settings, gpus: tuple[int, ...]) -> int:
        seen.append((settings.workers, gpus))
        return 0

    monkeypatch.setattr(polyhead_server.workers.supervisor, "supervise", supervise)
    monkeypatch.setattr(
        "polyhead_server.command.gpus_for", lambda device: {"cuda": (0, 1, 2)}.get(device, ())
    )
    run("--models", "m", "--device", "cuda")
    run("--models", "m", "--device", "cpu", "--workers", "2")
    run("--models", "m", "--device", "cpu")

    assert seen == [(1, (0, 1, 2)), (2, ())]
    assert len(served) == 1


def test_an_unknown_environment_variable_is_rejected(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYHEAD_SERVE_METRICS_PORT", "")  # as if it were not set
    assert run("--models", "m") == 0
    monkeypatch.setenv("POLYHEAD_SERVE_METRICS_PORT", "8002")

    with pytest.raises(CycloptsError, match="POLYHEAD_SERVE_METRICS_PORT do not"):
        run("--models", "m")


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'models = "from-file"\nport = 1\nhost = "0.0.0.0"\nmax_request_bytes = "1MiB"\nthreads = 3\n'
    )
    monkeypatch.setenv("POLYHEAD_SERVE_PORT", "2")
    monkeypatch.setenv("POLYHEAD_SERVE_HOST", "::1")
    monkeypatch.setenv("POLYHEAD_SERVE_CONFIG", str(file))

    run("--port", "3")

    assert served == [
        Settings(models=Path("from-file"), port=3, host="::1", max_request_bytes=2**20, threads=3)
    ]


def test_an_empty_variable_is_one_that_is_not_set(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("port = 1\n")
    for name in ("WORKERS", "PORT", "MAX_REPLY_BYTES", "TOKEN_FILE", "LOG_LEVEL"):
        monkeypatch.setenv(f"POLYHEAD_SERVE_{name}", "")

    run("--models", "m", "--config", str(file))

    assert served == [Settings(models=Path("m"), port=1)]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--models", "m", "--checkpoint", "c"], "--models or --checkpoint must say what to serve, not both"),
        (["--models", "m", "--task", "t"], "--task chooses an adapter of a --checkpoint; .*: leave it out"),
        (["--models", "m", "--port", "65536"], "65535"),
        (["--models", "m", "--max-reply-bytes", "much"], "a size must be a number of bytes"),
        (["--models", "m", "--max-reply-bytes", "2GiB"], "Must be <="),
        (["--models", "m", "--device", "tpu"], "tpu"),
        (["--models", "m", "--http-port", "65536"], "65535"),
        (["--models", "m", "--http-port", "none"], "none"),
        (["--models", "m", "--grpc-option", "grpc.so_reuseport=1"], "must be set by --workers"),
        (["--models", "m", "--device", "cuda:0,0"], "a device must be auto, cpu, openvino, cuda or cuda:0,2"),
        (["--models", "m", "--config", "missing.toml"], "--config must be a TOML file, missing.toml is none"),
    ],
)
def test_wrong_settings_are_refused(served: list[Settings], tokens: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        run(*tokens)

    assert type(caught.value).__module__.startswith("cyclopts")
    assert served == []


@pytest.mark.parametrize(
    "origin",
    ["https://example.org", "http://localhost:8080", "http://[::1]:8080", "chrome-extension://abcdef"],
)
def test_origins_are_as_browsers_send_them(served: list[Settings], origin: str) -> None:
    run("--models", "m", "--http-origin", origin)

    assert served == [Settings(models=Path("m"), http_origin=(origin,))]


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "example.org",
        "https://example.org/",
        "https://Example.org",
        "https://example.org:443",
        "http://[::1]:80",
        "http://example.org:080",
        "http://user@example.org",
        "https://b\u00fccher.example",
    ],
)
def test_origins_that_no_browser_sends_are_refused(served: list[Settings], origin: str) -> None:
    with pytest.raises(Exception, match="an origin must be written as browsers send it, such as https://ex"):
        run("--models", "m", "--http-origin", origin)

    assert served == []


def test_an_unknown_key_in_the_file_is_refused(served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("prot = 1\n")

    with pytest.raises(Exception, match="prot"):
        run("--models", "m", "--config", str(file))

    assert served == []


def test_a_server_that_cannot_start_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_settings: Settings) -> int:
        raise StartError("the port is taken")

    monkeypatch.setattr(polyhead_server.process, "run", fail)

    assert run("--models", "m") == 1
    flush()
    assert "ERROR cannot serve: the port is taken" in capfd.readouterr().err


def test_the_command_is_light_to_import() -> None:
    heavy = {"grpc", "onnx", "onnxruntime", "numpy", "tokenizers", "pydantic"}
    code = "import sys, polyhead_server.command; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert not heavy & set(modules.split())


# ---- A checkpoint -----------------------------------------------------------------------------------


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes the process that exports run this body, with the checkpoint as `sys.argv[-1]`."""

    def exporter(body: str) -> None:
        (tmp_path / "exporter_here.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.setattr("polyhead_server.checkpoint._EXPORT", "exporter_here")

    return exporter


def test_a_checkpoint_is_exported_and_what_came_of_it_served(
    served: list[Settings], exporter: Callable[[str], None]
) -> None:
    exporter("import sys; print('/exports/of ' + sys.argv[-1])")

    assert run("--checkpoint", "org/name", "--port", "3") == 0

    assert served == [Settings(models=Path("/exports/of org/name"), port=3)]


def test_the_task_of_a_checkpoint_goes_to_its_export(
    served: list[Settings], exporter: Callable[[str], None]
) -> None:
    exporter("import sys; print('/' + ' '.join(sys.argv[1:]))")

    assert run("--checkpoint", "org/name", "--task", "retrieval.query") == 0

    assert served == [Settings(models=Path("/--task=retrieval.query -- org/name"))]


def test_a_checkpoint_that_is_not_exported_is_not_served(
    served: list[Settings], exporter: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    exporter("raise SystemExit('no such name')")

    assert run("--checkpoint", "org/name") == 1

    flush()
    said = capfd.readouterr().err
    assert said.startswith("no such name\n")
    assert (
        "cannot serve: --checkpoint org/name is not exported: the process that was to do it says why" in said
    )
    assert served == []


def test_a_signal_ends_the_export_too(exporter: Callable[[str], None]) -> None:
    """Of the server alone: a supervisor sends it to no other process."""
    exporter("import os, time; os.kill(os.getppid(), 15); time.sleep(900)")
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        exported("org/name")

    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("alone", [False, True])
def test_ray_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, alone: bool
) -> None:
    """Or is installed without what Serve needs: `pip install ray`."""
    monkeypatch.delitem(sys.modules, "polyhead_server.ray", raising=False)
    ray: Any = ModuleType("ray")
    ray.__path__ = [str(tmp_path)]
    (tmp_path / "serve.py").write_text("import a_web_framework_that_is_missing")
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray if alone else None)
    monkeypatch.setattr("os.environ", {**os.environ})

    assert run("--models", "m", "--engine", "ray") == 1

    flush()
    assert "cannot serve: --engine ray needs Ray Serve: pip install 'polyhead[ray]'" in capfd.readouterr().err
