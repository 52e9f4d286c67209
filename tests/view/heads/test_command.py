"""`polyhead heads`."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from tests.view.heads.surveys import MadeClient, survey

from polyhead_client import InvalidRequest, Unavailable
from polyhead_client.command import main
from polyhead_client.options import ConnectionOptions
from polyhead_view.heads.survey import HeadSurvey

if TYPE_CHECKING:
    from tests.client.conftest import FakeServer

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def of_made_up_heads(_: object, texts: Sequence[str], *, truncate: bool, **__: object) -> HeadSurvey:
        if len(texts) > 1 and not truncate and len(texts[1]) > 50:
            raise InvalidRequest("text[1] must be at most 40 tokens, was 52")
        return survey(texts)

    monkeypatch.setattr(ConnectionOptions, "open", nullcontext)
    monkeypatch.setattr("polyhead_view.heads.survey.survey_heads", of_made_up_heads)
    path = tmp_path / "corpus <b>.txt"
    path.write_text("a b\n\na b c d e\na b c\na\n")
    return path


def test_the_table_has_the_roles_of_every_head(corpus: Path, capsys: Captured) -> None:
    assert main(["heads", str(corpus)]) == 0

    printed = capsys.readouterr()
    assert "made, version 1" in printed.out
    assert "4 texts, 19 tokens" in printed.out
    assert "previous token 0.90 ± 0.00" in printed.out
    assert "(previous token 0.45 ± 0.00)" in printed.out, "of norm-weighted attention"
    assert ["previous", "token", "previous", "≥", "0.5", "1", "0"] in [
        line.split() for line in printed.out.splitlines()
    ]
    assert "2.1 and 2.2 (1.00)" in printed.out


def test_json_csv_and_page_are_written(
    corpus: Path, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)  # test_page.py has pictures
    table, page = tmp_path / "heads.csv", tmp_path / "heads.html"

    assert main(["heads", str(corpus), "--json", "--csv", str(table), "--html", str(page)]) == 0

    assert len(json.loads(capsys.readouterr().out)["heads"]) == 6
    assert len(list(csv.DictReader(table.read_text().splitlines()))) == 12
    assert "corpus &lt;b&gt;.txt" in page.read_text()


def test_two_families_are_compared(
    corpus: Path, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)
    made = MadeClient({"made": 3, "other": 3})
    monkeypatch.setattr(ConnectionOptions, "open", lambda _: nullcontext(made))
    table, page = tmp_path / "heads.csv", tmp_path / "heads.html"

    options = ["--model", "made", "--json", "--csv", str(table), "--html", str(page)]
    assert main(["heads", str(corpus), "--against", "other", *options]) == 0
    assert [survey["version"] for survey in json.loads(capsys.readouterr().out)["surveys"]] == ["1", "1"]
    assert len(list(csv.DictReader(table.read_text().splitlines()))) == 12
    assert "corpus &lt;b&gt;.txt" in page.read_text()

    assert main(["heads", str(corpus), "--model", "made", "--against", "made:2"]) == 0
    assert "made, version 1, against made, version 2" in capsys.readouterr().out

    for wrong, said in (
        (["--against", "made"], "against must be another family or version"),
        (["--against", "gone"], "no model gone"),
        (["--against", "other", "--ablate"], "--ablate measures one family: leave out --against"),
    ):
        assert main(["heads", str(corpus), "--model", "made", *wrong]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("against", [[], ["--model", "made", "--against", "other"]])
def test_a_page_looks_as_it_was_asked_for(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, against: list[str]
) -> None:
    monkeypatch.setattr(ConnectionOptions, "open", lambda _: nullcontext(MadeClient({"made": 3, "other": 3})))
    drawn: list[tuple[float, set[str]]] = []

    def savefig(figure: Figure, *_: object, dpi: float, **__: object) -> None:
        drawn.append((dpi, {image.get_cmap().name for axes in figure.axes for image in axes.get_images()}))

    monkeypatch.setattr(Figure, "savefig", savefig)
    page = tmp_path / "heads.html"
    style = ["--dpi", "300", "--title", "A & B", "--colours", "Blues"]

    assert main(["heads", str(corpus), *against, "--html", str(page), *style]) == 0

    assert {dpi for dpi, _ in drawn} == {300}
    maps = set().union(*(maps for _, maps in drawn))
    assert "Blues" in maps
    assert "cividis" not in maps
    assert "<h1>A &amp; B</h1>" in page.read_text()
    assert main(["heads", str(corpus), *against, "--html", str(page), "--title", ""]) == 0
    assert "<h1>" not in page.read_text()
    assert "<title>Heads of made" in page.read_text()


def test_the_looks_of_no_page_are_refused(corpus: Path, capsys: Captured) -> None:
    for options, said in (
        (["--dpi", "300"], "--dpi, --title and --colours are of the page: give --html, too"),
        (["--colours", "Blue", "--html", str(corpus.with_suffix(".html"))], "--colours must be a colour map"),
    ):
        assert main(["heads", str(corpus), *options]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Unavailable("host:1 cannot be reached")])
def test_an_interrupted_ablation_keeps_what_was_measured(
    corpus: Path,
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: BaseException,
) -> None:
    def silenced(*_: object, **__: object) -> Iterator[NDArray[np.float64]]:
        yield np.full((3, 3), 0.25)
        yield np.full((3, 3), 0.5)
        raise stop

    monkeypatch.setattr("polyhead_view.heads.ablation.check_head_mask", lambda _: None)
    monkeypatch.setattr("polyhead_view.heads.ablation.ablate_heads", silenced)
    made = MadeClient({"made": 3})
    monkeypatch.setattr(ConnectionOptions, "open", lambda _: nullcontext(made))
    written = tmp_path / "heads.csv"

    assert main(["heads", str(corpus), "--ablate", "--csv", str(written)]) != 0

    said = capsys.readouterr().out
    assert "The drift was interrupted: it is over 2 texts" in said
    assert {row["drift"] for row in csv.DictReader(written.read_text().splitlines())} == {"0.5"}


def test_an_error_names_the_line(corpus: Path, capsys: Captured) -> None:
    corpus.write_text("a\n\n" + "b " * 50)

    assert main(["heads", str(corpus)]) == 1
    assert capsys.readouterr().err == "polyhead heads: line 3 must be at most 40 tokens, was 52\n"
    assert main(["heads", str(corpus), "--truncate"]) == 0


@pytest.mark.parametrize("flag", ["--csv", "--html"])
def test_a_file_that_cannot_be_written_is_an_error_before_any_work(
    fake: "FakeServer", capsys: Captured, tmp_path: Path, flag: str
) -> None:
    corpus = tmp_path / "corpus"
    corpus.write_text("a")
    missing = tmp_path / "missing" / "file"

    assert main(["heads", str(corpus), flag, str(missing), "--address", fake.target]) == 1
    assert capsys.readouterr().err == f"polyhead heads: {missing}: No such file or directory\n"
    assert not fake.calls


def test_a_family_without_an_insight_graph_says_so(
    fake: "FakeServer", capsys: Captured, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.write_text("a")

    assert main(["heads", str(corpus), "--model", "words", "--address", fake.target]) == 1
    error = capsys.readouterr().err
    assert error.startswith("polyhead heads: ")
    assert "words has no graph" in error
    assert "polyhead export --graphs insight" in error
