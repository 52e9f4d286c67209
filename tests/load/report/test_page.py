"""The page, its pictures, and the files beside it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.load.sweep.synthetic import measured, new_folder, small_sweep

from polyhead_load.report.page import with_code, write_report
from polyhead_load.sweep.folder import RunFolder

ENCODER = {"d_model": 16, "heads": 4, "layers": 2}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = new_folder(tmp_path)
    sweep = small_sweep(title="Small <encoders>", loads=["single", "50%"])
    measured(folder, sweep, slower={"tiny-tokens": 1.5})
    folder.note(
        {
            "families": {
                "tiny": {"encoder": ENCODER, "precision": "fp32", "parameters": 1234, "tools": {}},
                "tiny-tokens": {"encoder": {**ENCODER, "heads": 2}, "precision": "fp32", "parameters": 5},
            },
            "providers": {"tiny": "CPUExecutionProvider"},
            "hashes": {"tiny": {"model.onnx": "abc"}},
            "skipped": {"gpt3": "its export takes about 10 GiB"},
        }
    )
    return folder


class Reader(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.sources: list[str] = []
        self.depth: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "br"}:
            self.depth.append(tag)
        self.sources += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.depth.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.depth and self.depth[-1] == "h2":
            self.headings.append(data)


def test_the_page_has_everything_and_needs_nothing(folder: RunFolder) -> None:
    path = write_report(folder).page

    text = path.read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.depth == []
    assert reader.headings == [
        "Choose",
        "Differences",
        "Latency",
        "Latency against family",
        "Where the time goes",
        "The harness itself",
        "Void, overloaded, missing",
        "How it was measured",
    ]
    assert len(reader.sources) == 2
    assert all(source.startswith("data:image/svg+xml;base64,") for source in reader.sources)
    for part in (
        "Small &lt;encoders&gt;",
        "polyhead sweep &lt;small&gt;",
        "1,234 parameters",
    ):
        assert part in text
    assert "the default: pooled, else logits, else output" in text
    assert "@media (prefers-color-scheme: dark)" in text
    assert "skipped: its export takes about 10 GiB" in text
    assert re.search(r"2 cells were compared with family tiny at p50: 0 show .*, 2 are slower, 0 are", text)


def test_the_files_beside_it(folder: RunFolder) -> None:
    write_report(folder)

    report = json.loads((folder.path / "report.json").read_text())
    assert len(report["rows"]) == 4
    assert all(len(row["runs"]) == 3 for row in report["rows"])
    assert not report["rows"][0]["ratio"]
    assert 1.4 < report["rows"][1]["ratio"]["p50"]["value"] < 1.6
    names = {path.name for path in (folder.path / "plots").iterdir()}
    assert names == {"latency.svg", "split.svg"}


def test_the_same_numbers_give_the_same_report(folder: RunFolder) -> None:
    path = write_report(folder).page
    first = path.read_bytes()

    write_report(folder)

    assert path.read_bytes() == first


def test_a_run_that_has_measured_nothing_has_a_report(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.begin(small_sweep(), {"skipped": {"tiny": "it cannot be exported"}})

    path = write_report(folder).page

    text = path.read_text()
    assert "it cannot be exported" in text
    assert "<img" not in text


def test_commands_in_sentences_are_code() -> None:
    assert with_code("measured <alone>: `polyhead load --model a,b` loads both") == (
        "measured &lt;alone&gt;: <code>polyhead load --model a,b</code> loads both"
    )
