"""What the pages on encoders, HTTP and attention show works, and what they quote is said."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.browser import needs_browser, open_browser
from tests.interop.conftest import CLIENTS_PYTHON, needs_clients
from tests.model_types import SHARES, with_table
from tests.pages import PAGES, ROOT, block, blocks
from tests.server.http.conftest import OverHttp, over_http
from tests.servers import quick_settings, serving

from polyhead_export.kinds import ALWAYS, KINDS
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.hf_dialects import DIALECTS

ENCODERS = (ROOT / "docs" / "encoders.md").read_text()
README = (ROOT / "README.md").read_text()
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


@pytest.mark.slow
def test_your_own_encoder(
    minilm_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = [each.code for each in blocks("docs/your-own-encoder.md") if each.language == "python"]
    monkeypatch.chdir(tmp_path)
    shutil.copy(minilm_checkpoint / "tokenizer.json", tmp_path)
    names: dict[str, Any] = {}

    for each in code:
        if "Client(" not in each:
            exec(each, names)
    assert "models/mine/1: off float64 by " in capsys.readouterr().out
    with serving(quick_settings(tmp_path / "models")) as server:
        for each in code:
            if "Client(" in each:
                exec(each.replace(ADDRESS, server.address), names)
    assert names["served"].cross_attention[0].shape == (2, 4, 7, 9)
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
    code = block("docs/attention.md", "draw_pair")

    exec(code.replace(ADDRESS, minilm_address), {})

    assert (tmp_path / "pair.png").stat().st_size > 10_000


def test_a_module_is_drawn_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    exec(block("docs/attention.md", "attention_of"), {})

    assert (tmp_path / "mine.png").stat().st_size > 10_000


def test_bertviz(minilm_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not installed here; this is what its `head_view` takes."""
    seen: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "bertviz", SimpleNamespace(head_view=seen.update))

    exec(block("docs/attention.md", "bertviz").replace(ADDRESS, minilm_address), {})

    assert seen["tokens"] == ["[CLS]", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
    weights = [seen["attention"][layer] for layer in seen["include_layers"]]
    assert [tuple(layer.shape) for layer in weights] == [(1, 12, 9, 9)] * 2
    for layer in weights:
        np.testing.assert_allclose(layer.sum(-1).numpy(), 1, atol=1e-5)


def test_prompts(repository: Path) -> None:
    names: dict[str, Any] = {}

    code = block("docs/encoders.md", "prompt_name").replace('"e5"', '"tiny-tokens"')
    with serving(quick_settings(repository)) as server:
        exec(code.replace(ADDRESS, server.address), names)

    assert names["scores"].shape == (2,)


# ---- HTTP ----------------------------------------------------------------------------------------------


HTTP_ADDRESS = "127.0.0.1:8002"
TOKEN = "a-token-of-this-page"


class BlankPage(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[int]:
    """The port of an empty page. Browsers open connections that they may not use, so each has a thread."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def web(minilm_models: Path, page: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverHttp]:
    """A server with HTTP that asks for a token, which a page may call."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    origin = f"http://127.0.0.1:{page}"
    with over_http(minilm_models, token_file=tokens, http_origin=(origin,)) as one:
        yield one


CURL = [
    command
    for page in PAGES
    for shell in blocks(page)
    for command in shell.code.split("\n\n")
    if shell.language == "sh" and "curl " in command
]


def test_there_are_commands_to_try() -> None:
    assert len(CURL) == 5


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", CURL)
def test_curl(command: str, web: OverHttp, tmp_path: Path) -> None:
    (tmp_path / ".curlrc").write_text(f'fail-with-body\nsilent\nheader = "Authorization: Bearer {TOKEN}"\n')
    command = command.replace(HTTP_ADDRESS, f"127.0.0.1:{web.port}")

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"CURL_HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    if "--output weights.bin" in command:
        (size,) = re.findall(rb"(?i)inference-header-content-length: (\d+)", done.stdout)
        body = (tmp_path / "weights.bin").read_bytes()
        (output,) = json.loads(body[: int(size)])["outputs"]
        assert output["shape"] == [1, 12, 9, 9]
        assert len(body) == int(size) + 4 * 12 * 9 * 9
        return
    reply = json.loads(done.stdout)
    if "/v1/embeddings" in command:
        assert {len(one["embedding"]) for one in reply["data"]} == {384}
    else:
        tokens, weights = reply["outputs"]
        assert tokens["data"] == ["[CLS]", "a", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
        assert weights["shape"] == [1, 1, 1, 9]
        assert sum(weights["data"]) == pytest.approx(1, abs=1e-5)


@needs_browser
def test_a_browser(web: OverHttp, page: int) -> None:
    code = block("docs/http.md", "async function ask").replace(HTTP_ADDRESS, f"127.0.0.1:{web.port}")
    script = f"""
const token = {TOKEN!r}, done = arguments[0];
(async () => {{ {code}; return {{vectors, shape, weights: Array.from(weights)}} }})()
    .then(done, (error) => done({{error: String(error)}}));
"""
    with open_browser() as driver:
        driver.get(f"http://127.0.0.1:{page}/")
        got = driver.execute_async_script(script)
        driver.get(f"http://localhost:{page}/")  # which is another origin
        refused = driver.execute_async_script(script)

    assert np.shape(got["vectors"]) == (2, 384)
    assert got["shape"] == [1, 1, 9, 9]
    np.testing.assert_allclose(np.sum(np.reshape(got["weights"], (9, 9)), 1), 255, atol=5)
    assert refused == {"error": "TypeError: Failed to fetch"}


@needs_clients
def test_openai(web: OverHttp) -> None:
    code = block("docs/http.md", "OpenAI(").replace(HTTP_ADDRESS, f"127.0.0.1:{web.port}").replace("…", TOKEN)

    done = subprocess.run(
        [CLIENTS_PYTHON, "-c", f"{code}\nprint(len(reply.data[0].embedding), reply.usage.total_tokens)"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "384 10\n", done.stderr


# ---- Messages ------------------------------------------------------------------------------------------


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


def test_the_table_quotes_messages() -> None:
    table = ENCODERS.partition("## What is left out")[2].partition("## What is rejected")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.endswith(" |---|")]
    assert len(QUOTED) == len(rows) - 1  # without the table's head


@pytest.mark.parametrize("sentence", QUOTED)
def test_messages_are_those_of_the_code(sentence: str) -> None:
    pattern = ".*".join(re.escape(part) for part in sentence.split("…"))

    assert any(re.search(pattern, message, re.DOTALL) for message in messages())


def test_the_table_of_model_types_is_made_of_the_tables() -> None:
    assert with_table(ENCODERS) == ENCODERS, "run python -m tests.model_types"


def test_each_graph_is_exported_in_each_precision() -> None:
    """Beside what is exported of all types: `exports_of`."""
    exported = {pair for pairs in SHARES.values() for pair in pairs if pair[1] not in ALWAYS}

    assert exported == {*product(("int8", "fp16", "bf16"), KINDS.keys() - {*ALWAYS})}


def test_the_page_tells_what_is_special_of_every_model_type() -> None:
    table = ENCODERS.partition("| what is special |")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]

    assert sorted(name for cell in first for name in re.findall(r"`([a-z0-9_-]+)`", cell)) == sorted(DIALECTS)


# ---- Links ---------------------------------------------------------------------------------------------


INDEX = ROOT / "docs" / "README.md"
LINKING = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")]


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", INDEX.read_text()))
    assert linked == {page.name for page in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert "](docs/README.md)" in README


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"
