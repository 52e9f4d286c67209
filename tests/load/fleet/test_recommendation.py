"""Which of several configurations hold a target: one server, and one that is twice as slow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.load.fleet.known_server import swept

from polyhead_load.errors import LoadError
from polyhead_load.fleet.command import app
from polyhead_load.fleet.recommendation import choose
from polyhead_load.records import Records
from polyhead_load.report.page import write_report
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import Interval
from polyhead_load.sweep.spec import ServiceTarget

pytestmark = pytest.mark.usefixtures("quick")

MIXTURE = {"median": 32, "sigma": 0.5, "low": 8, "high": 64}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A sweep of `known`, and of `slow`, for which time passes half as fast."""
    folder = swept(
        tmp_path_factory.mktemp("choosing") / "run",
        tokens=[32],
        loads=["single", "60%"],
        requests=300,
        families={"slow": {}, "known": {}},
    )
    journal = folder.journal()
    for one in journal.measurements:
        assert one.records is not None
        assert one.achieved is not None
        records = Records.read(folder.path / one.records)
        name = f"{one.records.removesuffix('.npz')}-slow.npz"
        replace(
            records,
            **{field: 2 * getattr(records, field) for field in ("planned", "sent", "done")},
            **{field: 2 * getattr(records, field) for field in ("queue_ns", "compute_ns")},
        ).write(folder.path / name)
        rate = None if one.rate is None else one.rate / 2
        changes = {"family": "slow", "rate": rate, "achieved": one.achieved / 2, "records": name}
        folder.journal().append(one.model_copy(update=changes))
    parameters = {"known": 2_000, "slow": 3_000_000}
    families = {
        name: {"parameters": count, "encoder": {"heads": 4}, "precision": "fp32"}
        for name, count in parameters.items()
    }
    folder.note({"families": families})
    return folder


@pytest.fixture(scope="module")
def capacity(run: RunFolder) -> float:
    known: Any = choose(run, None, family="known")[0]
    return float(known.capacity)


def test_those_with_the_most_headroom_come_first(
    run: RunFolder, capacity: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ServiceTarget(rate=0.55 * capacity, p99="1s")

    known, slow = choose(run, target)

    assert (known.labels["family"], slow.labels["family"]) == ("known", "slow")
    assert (known.verdict, slow.verdict) == ("holds", "no")
    assert known.headroom is not None
    assert slow.headroom is not None
    changing = Interval(value=capacity, low=capacity / 2, high=2 * capacity)
    assert replace(known, capacity_interval=changing).verdict == "close"
    assert known.headroom == pytest.approx(0.85 / 0.55, rel=0.15)
    assert slow.headroom == pytest.approx(known.headroom / 2, rel=0.15)
    assert slow.plan is not None
    assert slow.plan.fleet.machines == 2

    # The command and the report say the same.
    flags = ["--rate", f"{target.rate}", "--p99", "1s"]
    monkeypatch.setattr("polyhead_load.fleet.recommendation.choose", lambda *_, **__: [known, slow])
    monkeypatch.setattr("polyhead_load.report.page.choose", lambda *_, **__: [known, slow])
    monkeypatch.setattr("polyhead_load.report.page.draw", lambda _: [])
    app([str(run.path), *flags], result_action="return_value")
    said = capsys.readouterr().out
    page = write_report(run, target).page.read_text()
    sentence = f"1 of 2 hold {target}, on one machine. Most headroom: known, {known.headroom:.2f} × the rate."
    assert sentence in said.replace("\n", " ")
    assert "2 machines" in said
    assert sentence in page
    assert page.index("<h2>Choose") < page.index("<h2>Latency")
    assert "3.00 M" in page
    with pytest.raises(LoadError, match="--picture draws one configuration, and there are 2"):
        app([str(run.path), *flags, "--picture", "x.svg"], result_action="return_value")


def test_what_no_rate_can_do_is_told_from_what_is_not_known(run: RunFolder) -> None:
    never, unknown = (
        choose(run, ServiceTarget(rate=1, p99="1us"), family="known", tokens=tokens)[0] for tokens in (32, 64)
    )

    assert (never.verdict, unknown.verdict) == ("never", "unknown")
    assert "no fleet can meet" in str(never.error)
    assert "costs are not extrapolated" in str(unknown.error)


def test_without_a_target_all_is_said_but_what_holds(run: RunFolder, capacity: float) -> None:
    slow, known = choose(run, None)

    assert (slow.verdict, slow.plan, slow.parameters) == ("", None, 3_000_000)
    assert slow.capacity == pytest.approx(capacity / 2)
    assert known.capacity_interval is None  # of one run


def test_a_mixture_that_was_measured_is_planned_for_by_its_own_runs(tmp_path: Path) -> None:
    folder = swept(tmp_path, tokens=[MIXTURE], loads=["single", "60%"], requests=300, mixtures=True)

    (one,) = choose(folder, ServiceTarget(rate=10, p99="1s"))

    assert one.plan is not None
    assert one.labels["tokens"] == "8–64, median 32"
    assert one.plan.model.capacity == pytest.approx(one.capacity, rel=0.15)
    (point,) = one.plan.measured.points
    predicted = one.plan.model.predict(point.rate)
    assert predicted.p99.value == pytest.approx(point.p99.value, rel=0.2)


def test_a_repository_is_planned_for_by_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models"
    (models / "a" / "1").mkdir(parents=True)
    (models / "a" / "1" / "manifest.json").touch()

    with pytest.raises(LoadError, match=rf"has none of the families in {models}: `polyhead sweep {models}`"):
        app([str(models), "--rate", "5", "--p99", "1s"], result_action="return_value")
    (tmp_path / "sweeps" / "all-models").mkdir(parents=True)
    (tmp_path / "sweeps" / "all-models" / "sweep.json").touch()
    with pytest.raises(LoadError, match=r"sweeps/all-models/sweep\.json must describe a sweep"):
        app([str(models), "--rate", "5", "--p99", "1s"], result_action="return_value")
