"""`polyhead view`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from matplotlib.image import imread

from polyhead_client.command import main

if TYPE_CHECKING:
    from tests.client.conftest import FakeServer

Captured = pytest.CaptureFixture[str]


def test_the_command_draws_a_picture(fake: "FakeServer", tmp_path: Path) -> None:
    out = tmp_path / "heads.png"

    assert (
        main(
            [
                "view",
                "the cat",
                "--model",
                "words",
                "--layer",
                "-1",
                "--out",
                str(out),
                "--address",
                fake.target,
            ]
        )
        == 0
    )

    height, width, _ = imread(out).shape
    assert width > height > 200
    asked = fake.last("ModelInfer")
    assert asked.model_name == "words.attention"
    assert [output.name for output in asked.outputs] == ["tokens", "lengths", "attention.1"]


@pytest.mark.parametrize("ending", ["txt", "pgf"])  # the latter takes a LaTeX installation
def test_an_unknown_kind_of_picture_is_refused_before_anything_is_asked(
    capsys: Captured, fake: "FakeServer", ending: str
) -> None:
    out = f"heads.{ending}"
    assert main(["view", "the cat", "--layer", "0", "--out", out, "--address", fake.target]) == 1

    assert capsys.readouterr().err.startswith("polyhead view: --out must end with one of ")
    assert not fake.calls


def test_without_matplotlib_the_extra_is_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polyhead_view.plots", raising=False)
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert main(["view", "the cat", "--layer", "0", "--out", "heads.png"]) == 1
    assert capsys.readouterr().err == "polyhead view needs the view extra: pip install 'polyhead[view]'\n"
