"""Every block of code on the pages is run by a test, or the page says in a comment why it is not.

Of commands in a shell it is checked that they are understood.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from tests.deploy.compose_file import services
from tests.pages import PAGES, ROOT, Block, block, blocks

from polyhead_client.command import GROUP, build_app, main
from polyhead_load.sweep.reading import read_sweep
from polyhead_model import EncoderConfig

PICTURES = {"", "mermaid"}
"""Languages of blocks that are not code."""

ALL = [each for page in PAGES for each in blocks(page) if each.language not in PICTURES]


# ---- Which are run -------------------------------------------------------------------------------------


@cache
def claims() -> tuple[set[tuple[str, str]], set[str]]:
    """The blocks that tests take, by page and a part; and the pages of which they take all in Python."""
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return (
        set(re.findall(r"\bblock\(\s*\"([^\"]+)\",\s*\"([^\"]+)\"", text)),
        set(re.findall(r"\bblocks\(\"([^\"]+)\"\)", text)),
    )


@pytest.mark.parametrize("one", [each for each in ALL if each.language != "sh"], ids=str)
def test_a_block_is_run_or_says_why_not(one: Block) -> None:
    parts, pages = claims()
    is_run = (one.language == "python" and one.page in pages) or any(
        page == one.page and part in one.code for page, part in parts
    )

    assert is_run != bool(one.reason)


def test_what_tests_take_is_there() -> None:
    for page, part in claims()[0]:
        assert block(page, part)


# ---- Commands ------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """Every command of every block for a shell, with the page, but for those of blocks that are not run."""
    for one in ALL:
        if one.language == "sh" and not one.reason and "curl " not in one.code:  # which test_docs.py runs
            for line in one.code.replace("\\\n", " ").splitlines():
                if line.strip():
                    yield one.page, line.strip()


def words_of(command: str) -> list[str]:
    """The words before a redirection, without comments."""
    return shlex.split(re.sub(r" (>|&$).*", "", command.partition("  #")[0]), comments=True)


@cache
def app() -> App:
    return build_app(entry_points(group=GROUP))


def polyhead(words: list[str]) -> None:
    """Our own options are parsed; locust's are its own (`tests/load/test_locust.py` lists them)."""
    if words[0] != "load":
        app().parse_args(words, exit_on_error=False, print_error=False)


def docker(words: list[str]) -> None:
    """A command of Compose names services that there are; what `run` hands to `export` is parsed."""
    while words[0] in {"compose", "--profile"}:
        words = words[1 if words[0] == "compose" else 2 :]
    verb, *rest = words
    assert verb in {"up", "down", "run", "restart", "build", "logs"}
    named = [word for word in rest if word in services({"POLYHEAD_GPU": "1"})]
    if verb in {"run", "restart", "build"}:
        assert named
    if verb == "run" and named[0] == "export" and "--entrypoint" not in rest:
        arguments = rest[rest.index("export") + 1 :]
        app().parse_args(["export", *arguments], exit_on_error=False, print_error=False)


def kubectl(words: list[str]) -> None:
    """What is applied is there; `tests/deploy/test_kubernetes.py` renders it."""
    if "-k" in words:
        assert (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").is_file()


def make(words: list[str]) -> None:
    """The target is there."""
    for target in (word for word in words if "=" not in word):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


CHECKS: dict[str, Callable[[list[str]], None]] = {
    each.__name__: each for each in (polyhead, docker, kubectl, make)
}
OTHERS = {
    "kind": r"load docker-image( polyhead-(server|export):\S+)+",
    "serve": r"deploy deploy/ray/\S+",  # Ray's command; `tests/server/ray` reads the file
    "python": r"-m benchmarks\.\S+.*",
    "pip": "install .*",  # `tests/test_distribution.py` compares the extras
    "export": "PIP_EXTRA_INDEX_URL=.*",  # `tests/test_readme.py` compares it with the Dockerfile's
}
"""What other commands are given."""
SHELL = ("ln", "find", "cp")
"""Which really run, in an empty folder."""


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_commands_are_understood(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("POLYHEAD_")]:
        monkeypatch.delenv(name)
    words = words_of(command)
    while "=" in words[0]:
        words = words[1:]
    if words[0] in SHELL:
        (tmp_path / ".cache" / "polyhead" / "models").mkdir(parents=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"HOME": str(tmp_path), "PATH": path}
        subprocess.run(["bash", "-euc", command], cwd=tmp_path, env=env, check=True)
        return
    if words[0] in OTHERS:
        assert re.fullmatch(OTHERS[words[0]], " ".join(words[1:]))
        return
    CHECKS[words[0]](words[1:])


# ---- Files ---------------------------------------------------------------------------------------------


def test_a_description_of_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = block("docs/encoders.md", "30522")
    (tmp_path / "encoder.json").write_text(code)

    assert EncoderConfig(**json.loads(code)).classifier is not None
    assert main(["describe", "--encoder", str(tmp_path / "encoder.json"), "--tokens", "128"]) == 0
    assert "classifier" in capsys.readouterr().out


def test_a_sweep_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(block("docs/load.md", "[families]"))

    name, sweep = read_sweep(str(tmp_path / "mine.toml"))

    assert (name, set(sweep.families)) == ("mine", {"ours-h6", "ours-h12"})


def test_a_client_with_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    exec(block("docs/operations.md", "ssl_channel_credentials").replace("…", "a-token"), names)

    names["client"].close()
