"""A plan from some points of a machine whose truth is known is within 15 % of what it is at others."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.load.fleet.known_server import CALLERS, LANES, KnownCosts, measure, swept

from polyhead_load import Lengths
from polyhead_load.errors import SweepError
from polyhead_load.fleet.measured import Measured, Runs, read_measured
from polyhead_load.fleet.model import MachineModel
from polyhead_load.fleet.report import FleetPlan
from polyhead_load.fleet.sizing import largest_rate, size_fleet
from polyhead_load.records import Records
from polyhead_load.sweep.folder import RunFolder
from polyhead_server.scheduling.costs import Size

WITHIN = 0.15


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return swept(tmp_path_factory.mktemp("known") / "run", tokens=[32, 128])


@pytest.fixture(scope="module")
def measured(folder: RunFolder) -> Measured:
    return read_measured(folder)


@pytest.fixture(scope="module")
def model(measured: Measured) -> MachineModel:
    return MachineModel.fit(measured, 128)


@pytest.fixture(scope="module")
def between(measured: Measured) -> MachineModel:
    """At a T that was not measured."""
    return MachineModel.fit(measured, 64)


def test_graphs_pad_unless_the_sweep_has_noted_that_they_are_packed(folder: RunFolder) -> None:
    """A sweep of a server that did not say so notes an empty text."""
    for activations, packed in ((None, False), ("", False), ("B,T,D", False), ("N,D", True)):
        folder.note({"activations": {} if activations is None else {"known": activations}})
        assert read_measured(folder).machine.packed == packed
    folder.note({"activations": {}})


def test_runs_are_found_in_requests() -> None:
    runs = Runs.of(measure(32, 400, callers=CALLERS), 1)

    assert runs.rows.sum() == 400
    assert runs.rows.max() > 1
    assert runs.at_once == pytest.approx(LANES, rel=0.05)
    prices = np.array([KnownCosts().price(Size.full(rows, 32)) for rows in runs.rows.tolist()])
    assert float(np.median(runs.seconds / prices)) == pytest.approx(1, abs=0.05)


def test_lanes_and_costs_are_found(measured: Measured) -> None:
    assert measured.machine.lanes == LANES
    for tokens in (32, 64, 128):
        assert measured.machine.shared.costs.price(Size.full(1, tokens)) == pytest.approx(
            KnownCosts().price(Size.full(1, tokens)), rel=0.05
        )
        assert measured.machine.alone.costs.price(Size.full(1, tokens)) == pytest.approx(
            KnownCosts(1.2 / LANES).price(Size.full(1, tokens)), rel=0.05
        )


@pytest.mark.parametrize(("tokens", "share"), [(64, 0.8), (128, 0.6)])
def test_the_largest_rate_is_that_of_the_truth(
    model: MachineModel, between: MachineModel, tokens: int, share: float
) -> None:
    """At T = 64, which was not measured, and at a rate between those that were."""
    fitted = between if tokens == 64 else model
    rate = share * fitted.capacity
    truth = float(np.quantile(measure(tokens, 5000, rate=rate, seed=99).latency_ms, 0.99)) / 1e3

    planned, _ = largest_rate(fitted, truth, 0.97)

    assert planned.rate == pytest.approx(rate, rel=WITHIN)


def test_a_point_that_the_plan_does_not_know(model: MachineModel) -> None:
    """The highest, which lies between no others."""
    point = next(one.point for one in model.corrections if one.point.load == "85%")
    truth = float(np.quantile(measure(128, 8000, rate=point.rate, seed=99).latency_ms, 0.99)) / 1e3

    planned, _ = largest_rate(model.without(point), truth, 1.2)

    assert planned.rate == pytest.approx(point.rate, rel=WITHIN)


def test_the_simulation_alone_is_near_the_truth(between: MachineModel) -> None:
    """Without any open loop to correct it."""
    rate = 0.8 * between.capacity
    truth = float(np.quantile(measure(64, 5000, rate=rate, seed=99).latency_ms, 0.99)) / 1e3

    planned, _ = largest_rate(replace(between, corrections=[]), truth, 0.97)

    assert planned.rate == pytest.approx(rate, rel=WITHIN)


def test_a_capacity_that_was_not_measured_is_that_of_the_truth(between: MachineModel) -> None:
    done = measure(64, 1500, callers=CALLERS, seed=5).done

    truth = (len(done) - 1) / float(done.max() - done.min())

    assert between.capacity == pytest.approx(truth, rel=0.05)


def test_points_correct_the_simulation_and_check_it(model: MachineModel, measured: Measured) -> None:
    assert [one.point.tokens for one in model.corrections] == [128] * 4
    checks = model.checks()
    assert all(ratio is not None and 0.7 < ratio < 1.4 for ratio in checks.values())
    point = next(iter(checks))
    twice = replace(
        measured,
        points=[replace(one, p99=one.p99.times(2 if one == point else 1)) for one in measured.points],
    )
    # The check of a point does not know it.
    assert next(iter(MachineModel.fit(twice, 128).checks().values())) == pytest.approx(
        (checks[point] or 0) / 2, rel=1e-6
    )


def test_the_same_seed_gives_the_same_numbers(measured: Measured, model: MachineModel) -> None:
    assert model.predict(150) == model.predict(150)
    other = MachineModel.fit(measured, 128, seed=1).predict(150)
    assert other.p99.value != model.predict(150).p99.value
    assert other.p99.value == pytest.approx(model.predict(150).p99.value, rel=0.15)


@pytest.mark.usefixtures("quick")
def test_lengths_as_a_distribution(measured: Measured) -> None:
    mixed = MachineModel.fit(measured, Lengths(median=60, sigma=0.4, low=32, high=128))

    at = {tokens: MachineModel.fit(measured, tokens).capacity for tokens in (32, 128)}
    assert at[128] < mixed.capacity < at[32]
    assert set(mixed.weights) == {32, 128}


@pytest.mark.parametrize("tokens", [31, 129, 0, -5, Lengths(median=60, sigma=0.6, low=8, high=128)])
def test_costs_are_not_extrapolated(measured: Measured, tokens: int | Lengths) -> None:
    with pytest.raises(SweepError, match=r"^--tokens must be within .*T = 32 to 128, was .*not extrapolated"):
        MachineModel.fit(measured, tokens)


def test_a_fleet(model: MachineModel) -> None:
    fleet = size_fleet(model, rate=5000, p99=0.05, most_share=0.85)

    assert fleet.limited_by == "p99"
    assert fleet.machines == int(np.ceil(5000 / fleet.most.rate))
    assert fleet.usual.rate == 5000 / fleet.machines
    assert fleet.usual.p99.value <= 0.05
    spare = size_fleet(model, rate=5000, p99=0.05, most_share=0.85, spare=2)
    assert spare.machines == fleet.machines + 2
    assert spare.worst == fleet.usual
    assert spare.usual.rate < fleet.usual.rate
    assert size_fleet(model, rate=1e-3, p99=0.05, most_share=0.85).machines == 1


@pytest.mark.usefixtures("quick")
def test_almost_no_requests_have_the_latency_of_lone_ones(model: MachineModel) -> None:
    """Times as large as 1e15 s would have no milliseconds left."""
    assert model.predict(1e-12).p99 == model.predict(1e-3 * model.capacity).p99


@pytest.mark.usefixtures("quick")
def test_a_plan_says_what_it_does_not_know(measured: Measured, model: MachineModel) -> None:
    elsewhere = replace(measured, own_server=False, processor="of the generator", flags="--workers 2")
    fleet = size_fleet(model, rate=5000, p99=0.05, most_share=0.85)
    unkept = replace(fleet, p99=0.9 * fleet.usual.p99.value)

    said = "\n".join(FleetPlan(measured=elsewhere, model=model, fleet=unkept, tokens=128).lines())

    assert "of the generator" not in said
    assert "what the sweep called, of which it knows no more than 2 runs side by side" in said
    assert "warning: the sweep's server had the flags --workers 2" in said
    assert re.search(r"warning: at .* the predicted p99 is .* ms, above the limit", said)
    assert "no machine fails" in said
    spare = FleetPlan(measured=measured, model=model, fleet=replace(fleet, spare=1), tokens=128)
    assert "no machine fails" not in "\n".join(spare.basis())
    assert not any("above the limit" in warning for warning in spare.warnings())


@pytest.mark.usefixtures("quick")
def test_a_limit_that_was_missed_at_a_lower_load_is_warned_of(
    measured: Measured, model: MachineModel
) -> None:
    first, *rest = model.corrections
    slow = replace(first, point=replace(first.point, p99=first.point.p99.times(100)))
    fleet = size_fleet(model, rate=5000, p99=0.05, most_share=0.85)

    def warnings(model: MachineModel) -> str:
        return "\n".join(FleetPlan(measured=measured, model=model, fleet=fleet, tokens=128).warnings())

    said = f"already missed where it was measured at T = 128, {first.point.load}: p99 "
    assert said in warnings(replace(model, corrections=[slow, *rest]))
    assert said not in warnings(model)
    beyond = replace(slow, share=fleet.usual.share + 0.01)
    assert said not in warnings(replace(model, corrections=[beyond, *rest]))


@pytest.mark.usefixtures("quick")
def test_a_loose_limit_is_one_of_the_capacity(model: MachineModel) -> None:
    fleet = size_fleet(model, rate=5000, p99=10.0, most_share=0.6)

    assert fleet.limited_by == "--utilisation 60%"
    assert fleet.most.share == pytest.approx(0.6)


@pytest.mark.usefixtures("quick")
def test_a_limit_that_no_fleet_can_meet(model: MachineModel) -> None:
    alone = float(np.quantile(measure(128, 2000).latency_ms, 0.99))

    with pytest.raises(
        SweepError, match=r"^no fleet can meet a p99 of 1 ms: .* a p99 of (?P<ms>[\d.]+) ms"
    ) as caught:
        size_fleet(model, rate=10, p99=1e-3, most_share=0.85)

    said = float(str(caught.value).partition("have a p99 of ")[2].partition(" ")[0])
    assert said == pytest.approx(alone, rel=0.3)


@pytest.mark.usefixtures("quick")
def test_failed_and_void_runs_are_not_used(tmp_path: Path) -> None:
    run = swept(
        tmp_path / "run",
        tokens=[32, 64],
        loads=["single", "50%", "70%"],
        requests=150,
        changes={
            (32, "50%"): {"void": ["other processes used 1 core"]},
            (32, "70%"): {"overloaded": ["the queue only grew"]},
            (64, "capacity"): {"errors": 3},
        },
    )

    measured = read_measured(run)

    assert list(measured.capacities) == [32]
    assert measured.points == []
    assert measured.left_out == [
        "T = 64, capacity: 3 of 150 requests failed",
        "T = 64: no valid run of capacity",
    ]
    model = MachineModel.fit(measured, 32)
    assert model.checks() == {}
    assert model.predict(100).p99.value > 0


@pytest.mark.usefixtures("quick")
def test_few_runs_of_a_length_are_better_than_none(tmp_path: Path) -> None:
    """Where requests are long, a cell may have no size of runs five times."""
    run = swept(tmp_path / "run", tokens=[32, 128], loads=["single", "50%"], requests=150)
    for load, callers in (("capacity-0", CALLERS), ("single-1", 1), ("single-2", 1)):
        measure(128, 2 * callers, callers=callers).write(run.path / "records" / f"128-{load}.npz")

    measured = read_measured(run)

    for way in (measured.machine.shared, measured.machine.alone):
        assert way.times[128].factors
    assert MachineModel.fit(measured, 64).predict(50).p99.value > 0


def test_replies_that_do_not_say_how_long_runs_took_are_said(tmp_path: Path) -> None:
    """Such as those of other servers with this protocol."""
    run = swept(tmp_path / "run", tokens=[32], loads=["single", "50%"], requests=20)
    for file in (run.path / "records").iterdir():
        records = Records.read(file)
        replace(records, compute_ns=np.full_like(records.compute_ns, -1)).write(file)

    with pytest.raises(SweepError, match=r"T = 32: the server's replies did not say how long runs took$"):
        read_measured(run)


def test_runs_of_changing_speed_are_used(tmp_path: Path) -> None:
    unstable = {(32, "50%"): {"overloaded": ["not stable: the median computing time was 2 ms and 3 ms"]}}
    run = swept(tmp_path / "run", tokens=[32], loads=["single", "50%"], requests=300, changes=unstable)

    assert [point.load for point in read_measured(run).points] == ["50%"]


@pytest.mark.usefixtures("quick")
def test_p99_of_lone_requests_is_not_corrected(model: MachineModel) -> None:
    twice = replace(model, corrections=[replace(one, p99=2 * one.p99) for one in model.corrections])

    assert twice.predict(1e-3).p99.value == pytest.approx(model.predict(1e-3).p99.value, rel=1e-3)
    most = max(one.share for one in model.corrections) * model.capacity
    assert twice.predict(most).p99.value > 1.5 * model.predict(most).p99.value


@pytest.mark.parametrize(
    ("changes", "fields", "message"),
    [
        ({(32, "single"): {"void": ["x"]}}, {}, "T = 32: no valid run of single"),
        ({(32, "capacity"): {"void": ["x"]}}, {}, "T = 32: no valid run of capacity"),
        (
            {},
            {"tokens": [{"median": 32, "sigma": 0.6, "low": 8, "high": 64}]},
            "It has mixtures of lengths alone",
        ),
        ({}, {"loads": ["single"]}, None),
    ],
)
def test_what_a_plan_needs_must_be_measured(
    tmp_path: Path,
    changes: dict[tuple[int, str], dict[str, object]],
    fields: dict[str, object],
    message: str | None,
) -> None:
    what: dict[str, object] = {"tokens": [32], "loads": ["single", "50%"], "requests": 100, **fields}
    run = swept(tmp_path / "run", changes=changes, **what)  # type: ignore[arg-type]
    if message is None:
        assert list(read_measured(run).capacities) == [32]  # and nothing checks the plan
        return
    with pytest.raises(SweepError, match="valid runs of one request in flight and of the capacity") as caught:
        read_measured(run)
    assert message in str(caught.value)


def test_one_of_several_configurations_is_chosen(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(
        SweepError, match=r"^--family must be one of known, was 'knwn'; did you mean 'known'\?$"
    ):
        read_measured(folder, family="knwn")
    with pytest.raises(SweepError, match=r"^--attention must be one of off, was 'all'"):
        read_measured(folder, attention="all")
    with pytest.raises(SweepError, match=r"^--batch must be one of 1, was '8'"):
        read_measured(folder, batch=8)
    mixture: Any = {"median": 32, "sigma": 0.6, "low": 8, "high": 64}
    several = swept(tmp_path / "run", tokens=[mixture], families={"a": {}, "b": {}})
    with pytest.raises(SweepError, match=r"^--family must be one of a, b: the sweep has several"):
        read_measured(several)


def test_a_folder_of_another_version(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"it has no sweep\.json$"):
        read_measured(RunFolder(tmp_path))
    held = json.loads((folder.path / "sweep.json").read_text())
    held["sweep"]["from_the_future"] = 1
    for text in (json.dumps(held), "[]", "1", "no JSON"):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(SweepError, match="is damaged, or of another version of polyhead"):
            read_measured(RunFolder(tmp_path))
