"""`polyhead trace`, and its picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.image import imread

from polyhead_client.command import main
from polyhead_client.tracing import Trace
from polyhead_view import draw_trace

if TYPE_CHECKING:
    from tests.client.conftest import FakeServer

Captured = pytest.CaptureFixture[str]
SHARES = {"token": [[0.0, 1.0], [0.25, 0.5], [-0.5, 0.75]], "head": [[0.125, np.nan], [0.5, -0.25]]}


def traced(by: Any) -> Trace:
    return Trace(
        model="bert.stream",
        version="1",
        by=by,
        shares=np.array(SHARES[by]),
        clean=1.0,
        corrupted=0.5,
        tokens=(["a", "$cat"], ["a", "$dog"]),
    )


@pytest.mark.parametrize("by", ["token", "head"])
def test_a_picture_has_a_cell_for_each_place(by: str) -> None:
    figure = draw_trace(traced(by))

    axis = figure.axes[0]
    (image,) = axis.images
    np.testing.assert_array_equal(np.ma.filled(np.ma.asarray(image.get_array()), np.nan), SHARES[by])
    assert image.get_clim() == (-1, 1)
    labels = [text.get_text() for text in axis.get_xticklabels()]
    assert labels == (["a", "$cat ← $dog"] if by == "token" else ["0", "1"])
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first layer is on top
    figure.draw_without_rendering()


@pytest.mark.parametrize("by", ["token", "head"])
def test_the_command_prints_and_draws(
    fake: "FakeServer", tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    asked: list[Any] = []

    def trace(_client: Any, *texts: Any, **options: Any) -> Trace:
        asked.append((texts, options["metric"], options["by"], options["model"]))
        options["progress"](6, 6)
        return traced(options["by"])

    monkeypatch.setattr("polyhead_client.client.Client.trace", trace)
    command = ["trace", "a cat", "--against", "a dog", "--by", by, "--label", "yes", "--address", fake.target]

    assert main([*command, "--top", "2", "--out", str(tmp_path / "trace.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1.0000 clean, 0.5000 corrupted; what one place recovers of it:"
    first, second = [line.split() for line in lines if "0." in line or "1.000" in line][1:3]
    if by == "token":
        assert (first, second[-1]) == (["0", "$cat@1", "←", "$dog", "1.000"], "0.750")
        assert "2, after the last" in " ".join(second)
    else:
        assert (first, second) == (["1", "0", "0.500"], ["0", "0", "0.125"])
    assert imread(tmp_path / "trace.png").shape[1] > 200
    assert main([*command, "--json", "--text-pair", "so"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["shares"][0] == ([0, 1] if by == "token" else [0.125, None])
    assert [texts for texts, *_ in asked] == [("a cat", "a dog"), (("a cat", "so"), ("a dog", "so"))]
    assert asked[0][1:] == ("yes", by, None)


def test_a_file_of_no_picture_is_refused_before_the_work(fake: "FakeServer", capsys: Captured) -> None:
    command = ["trace", "a", "--against", "b", "--out", "trace.doc", "--address", fake.target]
    assert main(command) == 1
    assert "--out must end with one of" in capsys.readouterr().err
