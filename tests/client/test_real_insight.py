"""What the pages and the notebook show of heads, on a server of every graph; and what BertViz draws."""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import Connect
from tests.pages import block
from tests.servers import quick_settings, serving

from polyhead_client import Client, InvalidRequest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "attention.ipynb"
L, H = 2, 2
TEXTS = ["the cat sat on the mat", "a dog", "the big dog ran, the big dog ran"]


@pytest.fixture(scope="module")
def address(probed_models: Path) -> Iterator[str]:
    """The address of a server of `probed`, which has every graph and a head mask."""
    with serving(quick_settings(probed_models, max_batch_size=2)) as server:
        yield server.address


@pytest.fixture
def client(connect: Connect, address: str) -> Client:
    """A client of that server, which takes two sequences a request."""
    return connect(address)


def test_the_page_shows_what_works(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    of_a_notebook = block("docs/client.md", "layer=5, head=3").replace("layer=5, head=3", "layer=1, head=1")
    names: dict[str, Any] = {}

    of_a_corpus = block("docs/client.md", "edge_sequence")
    for code in (of_a_notebook, of_a_corpus, block("docs/client.md", "rollout=True, top=3")):
        exec(code.replace("127.0.0.1:8001", address).replace("minilm", "probed"), names)

    names["client"].close()
    assert set(names["of_one"].key_token.values) >= {"[CLS]", "[SEP]"}
    assert names["to_separator"].shape == (L, H, 2)
    assert names["result"].scores["previous"].shape == (L, H)
    assert names["result"].top.keys.shape == (L, H, 9, 3)


def test_the_page_on_attention_reads_scores(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = block("docs/attention.md", "result.scores.weighted")
    for shown, ours in {
        "127.0.0.1:8001": address,
        "minilm": "probed",
        "[0, 2]": "[0, 1]",
        "[4, 5]": "[1, 0]",
    }.items():
        assert shown in code
        code = code.replace(shown, ours)

    exec(code, {})

    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (TEXTS, {"attention": 0}, "BertViz draws one sequence, this is a batch: encode one text"),
        (TEXTS[0], {}, "BertViz draws attention of all queries: encode with attention, without queries"),
        (TEXTS[0], {"attention": 0, "queries": 0}, "BertViz draws attention of all queries"),
        ([5, 6], {"attention": 0}, "BertViz needs tokens: encode a text, or with tokens=True"),
    ],
)
def test_bertviz_cannot_draw_all(client: Client, inputs: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client.encode(inputs, **options).to_bertviz()


@pytest.mark.parametrize("queries", [[14], range(9)])
def test_what_a_text_does_not_have_is_refused(client: Client, queries: Sequence[int]) -> None:
    with pytest.raises(InvalidRequest, match=r"^queries\b"):
        client.encode("a dog", attention=0, queries=queries)


def test_the_example_notebook_runs(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYHEAD_ADDRESS", address)
    monkeypatch.setenv("POLYHEAD_MODEL", "probed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = ast.parse("".join(cell["source"]))
            *statements, last = code.body
            if isinstance(last, ast.Expr):
                exec(compile(ast.Module(statements, []), str(NOTEBOOK), "exec"), names)
                shown.append(eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names))
            else:
                exec(compile(code, str(NOTEBOOK), "exec"), names)

    head, page, largest, _, scores, weighted, loaded, _ = shown
    assert "Layer 1, head 1: attention." in head._repr_html_()
    assert "Layer 1, head 1: norm-weighted attention." in weighted._repr_html_()
    assert page._repr_html_().startswith("<iframe srcdoc=")
    assert list(largest.columns) == ["query_token", "key_token", "weight"]
    assert "entropy" in scores
    assert repr(loaded) == repr(names["encoding"])
    assert (tmp_path / "heads.html").read_text().startswith("<!doctype html>")
