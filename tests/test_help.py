"""The help of every command: examples first, its own options, then those of the connection, and no noise."""

import re
import shlex
from importlib.metadata import entry_points
from typing import Any

import pytest
from cyclopts import App

from polyhead_client.command import GROUP, build_app, main

COMMANDS = sorted(point.name for point in entry_points(group=GROUP) if point.name != "load")
"""Load's options are locust's (`tests/load/test_locust.py`)."""
CALLING = {"explore", "heads", "infer", "similarity", "trace", "view"}


@pytest.fixture
def helped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `polyhead COMMAND --help` prints on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def helped(command: str) -> str:
        assert main([command, "--help"]) == 0
        return capsys.readouterr().out

    return helped


@pytest.mark.parametrize("command", COMMANDS)
def test_it_begins_with_examples_that_are_understood(command: str, helped: Any) -> None:
    text = helped(command)
    examples = re.findall(r"^ (polyhead .+)$", text.partition("╭")[0], re.MULTILINE)
    app: App = build_app(entry_points(group=GROUP))

    assert any(example.split()[1] == command for example in examples)
    for example in examples:
        words = shlex.split(re.sub(r" >.*", "", example))
        app.parse_args(words[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_there_is_nothing_to_skip(command: str, helped: Any) -> None:
    text = helped(command)

    assert not re.findall(r"--empty-\S+|--no-(?!prompt)\S+|\[env var|\[default: (?:None|False|\(\))", text)
    assert f"POLYHEAD_{command.upper()}_OPTION" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", sorted(CALLING))
def test_what_a_command_has_itself_comes_before_the_connection(command: str, helped: Any) -> None:
    own, titled, connection = helped(command).partition("─ Connection ─")
    flags = {"--address", "--timeout", "--tls", "--tls-ca", "--tls-cert", "--tls-key", "--token-file"}

    assert titled
    assert flags <= set(re.findall(r"--[a-z-]+", connection))
    assert not flags & set(re.findall(r"│ \*? *(--[a-z-]+)", own))
    assert "Parameters ─" not in connection


def test_kinds_of_graphs_are_listed(helped: Any) -> None:
    from polyhead_export.kinds import ALWAYS, KINDS

    text = " ".join(helped("export").replace("│", " ").split())
    (listed,) = re.findall(r"More kinds of graphs than fast and attention: (.+?), or all", text)

    assert set(listed.split(", ")) == set(KINDS) - set(ALWAYS)
