"""`polyhead plan` as a user calls it."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.load.fleet.known_server import swept

from polyhead_load.errors import LoadError, SweepError
from polyhead_load.fleet.command import app
from polyhead_load.sweep.folder import RunFolder

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return swept(
        tmp_path_factory.mktemp("runs") / "sweeps" / "known",
        tokens=[32],
        loads=["single", "50%", "80%"],
        requests=300,
    )


def plan(run: RunFolder | None, *more: str, **flags: str) -> None:
    values = {"rate": "5000", "tokens": "32", "p99": "20ms"} | flags
    spelled = [part for name, value in values.items() for part in (f"--{name}", value)]
    app([*([] if run is None else [str(run.path)]), *spelled, *more], result_action="return_value")


def test_a_plan(run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path.parent.parent)

    plan(None, "--spare", "1", "--price", "0.5")

    first, each, failed, mean, most, cost, _, basis, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith(
        "machines, of which 1 may fail: 5,000 requests/s, 99 of 100 within 20.0 ms "
        "(known, T 32, B 1, attention off)"
    )
    assert each.startswith("each has ")
    assert failed.startswith("if 1 failed, each has ")
    assert "in the queue" in mean
    assert "% of its capacity" in most
    assert cost.startswith("cost: ")
    assert basis == "what this rests on:"
    assert any("2 cores of a known processor, 2 runs side by side" in line for line in lines)
    assert sum(line.startswith("- measured at T = 32, ") for line in lines) == 2


def test_a_picture(run: RunFolder, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"

    plan(run, "--picture", str(picture))

    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_a_sweep_without_open_loops_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {(32, "50%"): {"void": ["x"]}}

    plan(swept(tmp_path / "run", tokens=[32], loads=["single", "50%"], requests=100, changes=changes))

    assert "warning: no open loop was measured at these lengths" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"p99": "50"}, "--p99: must be a time above 0 with its unit, such as 50ms, 0.2s or 800us, was '50'"),
        ({"p99": "50 minutes"}, "was '50 minutes'"),
        ({"p99": "0ms"}, "was '0ms'"),
        ({"p99": "nan s"}, "was 'nan s'"),
        ({"p99": "1ms"}, "no fleet can meet a p99 of 1 ms"),
        ({"rate": "0"}, "--rate: must be from 1e-06 to 1e+12, requests a second, was 0"),
        ({"rate": "1e308"}, "was 1e+308"),
        ({"rate": "1e-300"}, "was 1e-300"),
        ({"rate": "-3"}, "was -3"),
        ({"rate": "inf"}, "was inf"),
        ({"rate": "nan"}, "was nan"),
        ({"tokens": "many"}, "--tokens must be T or median="),
        ({"tokens": "64"}, "T = 32 alone, was 64"),
        (
            {"utilisation": "100%"},
            "--utilisation must be a share above 0% and below 100%, such as 85%, was '100%'",
        ),
        ({"utilisation": "0.8"}, "was '0.8'"),
        ({"utilisation": "0%"}, "was '0%'"),
        ({"price": "-1"}, "--price must be from 1e-06 to 1e+12, for a machine and hour, was -1"),
        ({"family": "other"}, "--family must be one of known, was 'other'"),
    ],
)
def test_what_cannot_be_planned_is_said(run: RunFolder, flags: dict[str, str], message: str) -> None:
    with pytest.raises(LoadError) as caught:
        plan(run, **flags)
    assert message in str(caught.value)


def test_a_huge_rate_is_only_many_machines(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    plan(run, rate="1e12", p99="1s")

    assert "machines: 1,000,000,000,000 requests/s" in capsys.readouterr().out


def test_the_run_to_plan_with_must_be_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SweepError, match=r"sweeps must have one for it to be left out, it has none$"):
        plan(None)
    for name in ("a", "b"):
        (tmp_path / "sweeps" / name).mkdir(parents=True)
        (tmp_path / "sweeps" / name / "sweep.json").touch()
    with pytest.raises(SweepError, match=r"it has sweeps/a, sweeps/b$"):
        plan(None)
