"""What the pages on encoders, pictures and your own encoder show works, and what they quote is said."""

import ast
import re
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.servers import quick_settings, serving

from polyhead_model import Encoder, EncoderConfig

ROOT = Path(__file__).parent.parent
ENCODERS = (ROOT / "docs" / "encoders.md").read_text()
VIEW = (ROOT / "docs" / "view.md").read_text()
OWN = (ROOT / "docs" / "your-own-encoder.md").read_text()
ADDRESS = "127.0.0.1:8001"


def test_the_files_on_a_request_s_path_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\b([a-z]+)/([a-z_]+\.py)", text))
    for folder, name in named:
        package = f"polyhead_{folder}" if folder in {"client", "proto"} else f"polyhead_server/{folder}"
        root = folder if folder in {"client", "proto"} else "server"
        assert (ROOT / root / package / name).is_file(), f"{folder}/{name}"
    assert len(named) > 15


def python(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_your_own_encoder(
    minilm_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    *blocks, _ = python(OWN)
    (calling,) = (number for number, block in enumerate(blocks) if "Client(" in block)
    monkeypatch.chdir(tmp_path)
    shutil.copy(minilm_checkpoint / "tokenizer.json", tmp_path)
    names: dict[str, Any] = {}

    for block in blocks[:calling]:
        exec(block, names)
    assert "models/mine/1: off PyTorch by " in capsys.readouterr().out
    with serving(quick_settings(tmp_path / "models")) as server:
        exec(blocks[calling].replace(ADDRESS, server.address), names)
    assert names["served"].output.shape == (2, 7, 64)
    for block in blocks[calling + 1 :]:
        exec(block, names)
    assert (tmp_path / "models" / "mine-of-text" / "1" / "tokenizer.json").is_file()


def test_names_of_weights_are_those_of_encoders() -> None:
    tables = EncoderConfig(
        d_model=8, heads=2, layers=1, vocabulary=9, positions=9, types=2, embedding_norm=True, final_norm=True
    )
    block = EncoderConfig(
        d_model=8, heads=2, layers=1, feed_forward=8, cross_attention="after_self", fused=True, gated=True
    )
    encoders = [Encoder(one) for one in (tables, block, replace(block, fused=False))]

    named = re.findall(r"^\| `([a-z0-9_.]+)`", OWN, re.MULTILINE)

    assert len(named) == 8
    assert set(named) <= {name for encoder in encoders for name in encoder.state_dict()}


def test_view(minilm_address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = python(VIEW)

    exec(code.replace(ADDRESS, minilm_address), {})

    assert (tmp_path / "pair.png").stat().st_size > 10_000


def test_bertviz(minilm_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not installed here; this is what its `head_view` takes."""
    seen: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "bertviz", SimpleNamespace(head_view=seen.update))

    exec(python(OWN)[-1].replace(ADDRESS, minilm_address), {})

    assert seen["tokens"] == ["[CLS]", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
    weights = [seen["attention"][layer] for layer in seen["include_layers"]]
    assert [tuple(layer.shape) for layer in weights] == [(1, 12, 9, 9)] * 2
    for layer in weights:
        np.testing.assert_allclose(layer.sum(-1).numpy(), 1, atol=1e-5)


def test_prompts(repository: Path) -> None:
    names: dict[str, Any] = {}

    (code,) = (block for block in python(ENCODERS) if "prompt_name" in block)
    with serving(quick_settings(repository)) as server:  # of these families, one takes text, and has prompts
        exec(code.replace(ADDRESS, server.address), names)

    assert names["scores"].shape == (2,)


@cache
def messages() -> list[str]:
    """Every text in the sources of model and export, `…` for what is filled in."""
    found = []
    for path in [*(ROOT / "model").rglob("*.py"), *(ROOT / "export").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


QUOTED = re.findall(r"^\| [^|]+ \| `([^`]*…[^`]*|[^`]*: [^`]*)` \|$", ENCODERS, re.MULTILINE)


def test_tables_quote_messages() -> None:
    tables = ENCODERS.partition("## What is left out")[2].partition("## Presets")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and not line.endswith(" |---|")]
    assert len(QUOTED) == len(rows) - 2  # without the tables' heads


@pytest.mark.parametrize("sentence", QUOTED)
def test_messages_are_those_of_the_code(sentence: str) -> None:
    pattern = ".*".join(re.escape(part) for part in sentence.split("…"))

    assert any(re.search(pattern, message, re.DOTALL) for message in messages())


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", ENCODERS + OWN))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
