"""`polyhead`: finding commands, and how failures are reported."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import pytest

import polyhead_client.command
from polyhead_client.command import main

Add = Callable[[str], None]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Add:
    """Makes `polyhead tried` run this body, as a command that needs the server extra."""

    def add(body: str) -> None:
        (tmp_path / "tried_command.py").write_text(
            "from cyclopts import App\n"
            "app = App(name='tried', help='Tried here.')\n"
            "@app.default\n"
            "def tried(*, flag: int = 1) -> int | None:\n"
            f"    {body}\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "tried_command", raising=False)
        point = EntryPoint("tried", "tried_command:app", "polyhead.commands")
        monkeypatch.setattr(polyhead_client.command, "entry_points", lambda group: [point])
        monkeypatch.setitem(polyhead_client.command._EXTRAS, "tried_command", "server")

    return add


def test_the_help_lists_every_command_and_imports_none() -> None:
    points = {point.name: point.module for point in entry_points(group="polyhead.commands")}
    heavy = ["grpc", "numpy", "google.protobuf", "matplotlib", "torch", "markdown_it", *points.values()]
    code = f"""
import sys
from polyhead_client.command import main
main(["--help"])
assert not sys.modules.keys() & {heavy!r}, sys.modules.keys() & {heavy!r}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(?m)^│ ([a-z]+) ", done.stdout)) == points.keys()
    assert "Serve a model repository over gRPC." in done.stdout


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{version('polyhead')}\n"


def test_an_unknown_command_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["nothing"])
    assert exited.value.code == 2
    assert "Unknown command" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["\x1b[2J"], ["tried", "--\x1b[2J"], ["tried", "--flag=\x1b[2J"]])
def test_what_a_terminal_would_obey_is_escaped(
    add: Add, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    add("return flag")

    with pytest.raises(SystemExit):
        main(arguments)

    said = capsys.readouterr().err
    assert "\\x1b[2J" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(("body", "status"), [("return None", 0), ("return 3", 3), ("return flag", 1)])
def test_the_status_is_the_commands(add: Add, body: str, status: int) -> None:
    add(body)
    assert main(["tried"]) == status


def test_flags_come_from_the_environment_too(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    add("return flag")
    monkeypatch.setenv("POLYHEAD_TRIED_FLAG", "7")

    assert main(["tried"]) == 7
    assert main(["tried", "--flag", "8"]) == 8


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "from polyhead_client import NotFound; raise NotFound('no model x,\\n there is y')",
            "polyhead tried: no model x, there is y",
        ),
        ("open('/nowhere/to/be/found')", "polyhead tried: /nowhere/to/be/found: No such file or directory"),
        ("raise OSError('no room')", "polyhead tried: no room"),
        ("import not_installed", "polyhead tried needs the server extra: pip install 'polyhead[server]'"),
    ],
)
def test_expected_failures_are_printed_in_one_line(
    add: Add, capsys: pytest.CaptureFixture[str], body: str, line: str
) -> None:
    add(body)

    assert main(["tried"]) == 1
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return {}['x']", KeyError),
        ("raise ValueError('of ours')", ValueError),
        ("import polyhead_client.misspelt", ModuleNotFoundError),
        ("from sys import misspelt", ImportError),
    ],
)
def test_faults_of_ours_are_not_hidden(add: Add, body: str, error: type[Exception]) -> None:
    add(body)
    with pytest.raises(error):
        main(["tried"])


@pytest.mark.parametrize(("given", "holds"), [(None, "ERROR"), ("DEBUG", "DEBUG")])
def test_grpc_prints_errors_only_unless_asked(
    add: Add,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str | None,
    holds: str,
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", given or "")
    if given is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    add("import os; print(os.environ['GRPC_VERBOSITY'])")

    assert main(["tried"]) == 0
    assert capsys.readouterr().out == f"{holds}\n"


def test_ctrl_c_ends_quietly(add: Add, capsys: pytest.CaptureFixture[str]) -> None:
    add("raise KeyboardInterrupt")

    assert main(["tried"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_command_that_cannot_be_imported_is_listed_with_what_it_needs(
    add: Add, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    add("return None")
    (tmp_path / "tried_command.py").write_text("import not_installed")

    assert main(["--help"]) == 0
    assert "tried" in (output := capsys.readouterr().out)
    assert "(needs polyhead[server])" in output
    assert main(["tried"]) == 1
    assert (
        capsys.readouterr().err == "polyhead tried needs the server extra: pip install 'polyhead[server]'\n"
    )


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_learn_to_complete_the_command(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, broken: bool
) -> None:
    add("return None")
    if broken:
        (tmp_path / "tried_command.py").write_text("import not_installed")
    monkeypatch.setenv("HOME", str(tmp_path))  # where shells have their start-up files
    out = tmp_path / "completion"

    assert main(["--install-completion", "--shell", shell, "--output", str(out)]) == 0

    assert "tried" in (script := out.read_text())
    assert ("flag" in script) is not broken
