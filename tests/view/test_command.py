"""`polyhead view` and `polyhead similarity`."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from tests.servers import quick_settings, serving

from polyhead_client.command import main

if TYPE_CHECKING:
    from tests.client.conftest import FakeServer

Captured = pytest.CaptureFixture[str]


def test_the_command_draws_a_picture(fake: "FakeServer", tmp_path: Path) -> None:
    out = tmp_path / "heads.png"
    options = ["--model", "words", "--layer", "-1", "--out", str(out), "--address", fake.target]

    assert main(["view", "the cat", *options]) == 0

    height, width, _ = imread(out).shape
    assert width > height > 200
    asked = fake.last("ModelInfer")
    assert asked.model_name == "words.attention"
    assert [output.name for output in asked.outputs] == ["tokens", "lengths", "attention.1"]


def test_vectors_of_a_file_are_drawn(fake: "FakeServer", tmp_path: Path, capsys: Captured) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 5, 4), np.float32))
    np.save(tmp_path / "several.npy", np.ones((2, 5, 4), np.float32))
    out = str(tmp_path / "x.svg")
    options = ["--model", "vectors", "--layer", "1", "--out", out, "--address", fake.target]

    assert main(["view", "--input", str(tmp_path / "x.npy"), *options]) == 0

    assert fake.last("ModelInfer").inputs[0].shape == [1, 5, 4]
    assert (tmp_path / "x.svg").exists()
    for wrong, message in (
        ([], "give either a sentence, or --input FILE.npy"),
        (["the cat", "--input", str(tmp_path / "x.npy")], "give either a sentence, or --input FILE.npy"),
        (["--input", str(tmp_path / "several.npy")], "--input must be one sequence, vectors"),
        (["--input", str(tmp_path / "x.npy"), "--cross"], "cross_attention is not available"),
    ):
        assert main(["view", *wrong, *options]) == 1
        assert message in capsys.readouterr().err


def test_a_pair_is_drawn_with_the_border_between_its_texts(
    scorers: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("polyhead_view.figures.save", lambda figure, *_, **__: drawn.append(figure))
    with serving(quick_settings(scorers)) as server:
        options = ["--model", "reranker", "--layer", "1", "--address", server.address]
        assert main(["view", "the cat", "--text-pair", "a big dog ran", *options]) == 0
        assert main(["view", "the cat", *options]) == 0
        assert main(["view", "--text-pair", "a dog", "--input", "x.npy", *options]) == 1

    pair, alone = ([axes for axes in figure.axes if axes.get_title().startswith("head")] for figure in drawn)
    labels = [label.get_text() for label in pair[0].get_yticklabels()]
    assert labels == ["[CLS]", "the", "cat", "[SEP]", "a", "big", "dog", "ran", "[SEP]"]
    for axes in pair:
        (across, down) = axes.lines
        assert [*np.unique(across.get_ydata()), *np.unique(down.get_xdata())] == [3.5, 3.5]
    assert not any(axes.lines for axes in alone)
    assert "--text-pair goes with a sentence" in capsys.readouterr().err


def test_a_picture_without_a_name_has_one(
    capsys: Captured, fake: "FakeServer", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["view", "the cat", "--model", "words", "--layer", "0", "--address", fake.target]) == 0

    assert capsys.readouterr().out == "attention.png\n"
    assert imread(tmp_path / "attention.png").size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --layer, or --contacts"),
        (["--layer", "1", "--contacts"], "give either --layer, or --contacts"),
        (["--contacts", "--heads", "1"], "--contacts is one map: leave out --cross, --weighted, --heads"),
        (["--contacts"], "contacts is not available: words has no graph that gives it"),
    ],
)
def test_contacts_are_drawn_instead_of_a_layer(
    fake: "FakeServer", capsys: Captured, options: list[str], message: str
) -> None:
    assert main(["view", "the cat", "--model", "words", "--address", fake.target, *options]) == 1

    assert message in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["txt", "pgf"])  # the latter takes a LaTeX installation
def test_an_unknown_kind_of_picture_is_refused_before_anything_is_asked(
    capsys: Captured, fake: "FakeServer", ending: str
) -> None:
    out = f"heads.{ending}"
    assert main(["view", "the cat", "--layer", "0", "--out", out, "--address", fake.target]) == 1

    assert capsys.readouterr().err.startswith("polyhead view: --out must end with one of ")
    assert not fake.calls


def test_similarity_shows_the_pairs_that_add_most(real_server: str, capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "similarity.svg"
    texts = ["the cat sat on the mat .", "the cat [b]ran[/b] ."]

    assert main(["similarity", *texts, "--model", "tiny-tokens", "--address", real_server]) == 0
    printed = capsys.readouterr().out
    words = ["similarity", *texts, "--model", "tiny-tokens", "--top", "2", "--out", str(out)]
    assert main([*words, "--address", real_server]) == 0

    lines = printed.splitlines()
    assert re.match(r"cosine -?0\.\d{4}, the sum over 117 pairs of tokens", lines[0])
    rows = [
        line.split() for line in lines if re.search(r"\d\.\d{4}$", line.rstrip()) and "cosine" not in line
    ]
    assert len(rows) == 10
    assert {row[0] for row in rows} <= {"[CLS]", "the@1", "cat", "sat", "on", "the@5", "mat", ".", "[SEP]"}
    assert [float(row[2]) for row in rows] == sorted((float(row[2]) for row in rows), reverse=True)
    assert len(capsys.readouterr().out.splitlines()) == len(lines) - 8
    assert out.read_text().startswith("<?xml")


def test_without_matplotlib_the_extra_is_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polyhead_view.plots", raising=False)
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert main(["view", "the cat", "--layer", "0", "--out", "heads.png"]) == 1
    assert capsys.readouterr().err == "polyhead view needs the view extra: pip install 'polyhead[view]'\n"


def test_pictures_have_dots_a_title_and_colours_of_choice(
    fake: "FakeServer", tmp_path: Path, capsys: Captured
) -> None:
    out = str(tmp_path / "x.png")
    command = ["view", "the cat", "--model", "words", "--layer", "0", "--out", out, "--address", fake.target]

    sizes = []
    for dpi in ("50", "100"):
        assert main([*command, "--dpi", dpi, "--title", "", "--colours", "Blues"]) == 0
        sizes.append(imread(out).shape[1])
    assert abs(sizes[1] - 2 * sizes[0]) <= 2
    capsys.readouterr()
    assert main([*command, "--colours", "blau"]) == 1
    assert "--colours must be a colour map of matplotlib" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--dpi", "0"])
