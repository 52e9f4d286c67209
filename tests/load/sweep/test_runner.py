"""Block after block: what is measured, what is tried again, what is skipped, and how a sweep goes on."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.load.sweep.synthetic import make_records, make_run, new_folder, small_sweep
from tests.servers import InThread, quick_settings, serving

from polyhead_load import LoadPlan
from polyhead_load.errors import SweepError
from polyhead_load.records import GeneratorRun
from polyhead_load.report.findings import read_findings
from polyhead_load.sweep.cells import THROUGHPUT, CellRun
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.measuring import CpuTimes
from polyhead_load.sweep.processes import ProcessError
from polyhead_load.sweep.progress import SweepProgress
from polyhead_load.sweep.runner import SweepRunner
from polyhead_load.sweep.server import MeasuredServer
from polyhead_load.sweep.spec import Sweep
from polyhead_load.sweep.target import ServiceTarget


class Watching(SweepProgress):
    """A bar that is not shown, and that remembers."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.cell_runs: list[CellRun] = []
        self.runs = self.left = 0

    def begin(self, runs: int, seconds: float) -> None:
        self.runs = self.left = runs
        assert (seconds > 0) is (runs > 0)

    def expect(self, runs: int) -> None:
        self.left = runs

    def start_run(self, run: CellRun) -> None:
        self.cell_runs.append(run)


class FakeServer(MeasuredServer):
    """A real server's address, with a life of its own."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.lives = True

    def alive(self) -> bool:
        return self.lives

    def memory_mib(self) -> float | None:
        return 100.0


class Lab:
    """A sweep over a server that runs, with a generator that makes its records up.

    Args:
        sweep: What is measured.
        folder: Where to.
        server: Has the families.
        generate: Instead of good records for each plan.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: RunFolder,
        server: InThread,
        generate: Callable[[LoadPlan], GeneratorRun] | None = None,
    ) -> None:
        self.sweep, self.folder = sweep, folder
        self.watching = Watching()
        self.servers: list[FakeServer] = []
        self.plans: list[LoadPlan] = []
        self._address = server.address
        self._generate = generate or good

    @contextmanager
    def start(self) -> Iterator[FakeServer]:
        self.servers.append(FakeServer(self._address))
        yield self.servers[-1]

    def generate(self, plan: LoadPlan, _: Path) -> GeneratorRun:
        self.plans.append(plan)
        return self._generate(plan)

    def run(self, *families: str, own: bool = True) -> SweepRunner:
        self.folder.begin(self.sweep, {})
        runner = SweepRunner(
            self.sweep,
            self.folder,
            families or ("tiny", "tiny-tokens"),
            start=self.start,
            own=own,
            generate=self.generate,
            progress=self.watching,
        )
        with runner:
            runner.run()
        return runner

    @property
    def measurements(self) -> list[Measurement]:
        return self.folder.journal().measurements


def good(plan: LoadPlan) -> GeneratorRun:
    count = 100 if plan.rate is None else max(1, round(plan.rate * plan.seconds))
    return make_run(make_records(count, seconds=plan.seconds), seconds=plan.seconds, cpu_seconds=0.01)


def bad(plan: LoadPlan) -> GeneratorRun:
    run = good(plan)
    return replace(run, records=replace(run.records, code=np.full(len(run.records.code), 14, np.int16)))


def busy(plan: LoadPlan) -> GeneratorRun:
    run = good(plan)
    return replace(run, facts={**run.facts, "cpu_seconds": plan.seconds})


def stalling(plan: LoadPlan) -> GeneratorRun:
    """Nothing is answered but at the end, and one request not even then."""
    run = good(plan)
    codes = run.records.code.copy()
    codes[0] = 4
    return replace(run, records=replace(run.records, code=codes, done=run.records.done * 0 + plan.seconds))


@pytest.fixture(scope="module")
def there(repository: Path) -> Iterator[InThread]:
    with serving(quick_settings(repository)) as server:
        yield server


def quick(**changes: Any) -> Sweep:
    return small_sweep(**({"blocks": 2} | changes))


def test_a_sweep_that_begins_on_a_busy_machine_ends_at_once(
    there: InThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0.31, 0.62, 0.0]
    monkeypatch.setattr(CpuTimes, "foreign_cores", lambda *_: used.pop(0) if len(used) > 1 else used[0])
    monkeypatch.setattr(CpuTimes, "stolen_cores", lambda *_: 0.0)  # the machine's host may really be busy
    lab = Lab(quick(families={"tiny": {}}, gates={"foreign_cpu": 0.15}), new_folder(tmp_path), there)

    with pytest.raises(SweepError, match=r"first 2 runs are void: .* 0\.62 cores .*limit: 0\.15.*-cpu 0\.8"):
        lab.run("tiny")
    assert len(lab.measurements) == 2

    # Nothing counts yet, so that the gate may be another.
    lab.sweep = quick(families={"tiny": {}}, gates={"foreign_cpu": 0.8})
    lab.run("tiny")
    assert sum(not one.void for one in lab.measurements) == 3 + 2 * 2


def test_every_cell_once_in_each_block_in_an_order_of_its_own(there: InThread, tmp_path: Path) -> None:
    lab = Lab(quick(families={"tiny": {}}, tokens=[2, 3, 4], blocks=2), new_folder(tmp_path), there)
    runner = lab.run("tiny")

    counts = Counter((one.block, *one.cell) for one in lab.measurements)
    assert {(key[0] == 0, times) for key, times in counts.items()} == {(True, 3), (False, 1)}
    assert sum(counts.values()) == 3 * 3 + 2 * 6 == lab.watching.runs
    assert not any(one.void or one.overloaded for one in lab.measurements)
    orders = [[run.cell for run in lab.watching.cell_runs if run.block == block] for block in (1, 2)]
    assert orders[0] != orders[1]
    assert {run.cell.load for run in lab.watching.cell_runs[:9]} == {THROUGHPUT}
    # Each throughput and each block has a server of its own.
    assert len(lab.servers) == 5
    assert runner.properties["tiny"]["execution_provider"] == "CPUExecutionProvider"

    # Half of 100 answers in half a second; the rate of each cell is the same in all blocks.
    rates = {plan.rate for plan in lab.plans if plan.rate}
    assert all(rate == pytest.approx(100.0, rel=0.05) for rate in rates)
    assert len(rates) == 1
    for one in lab.measurements:
        assert one.records is not None
        assert len(lab.folder.load_records(one.records).done) == one.requests

    # All is there: nothing is left to do, and no server is started for it.
    again = Lab(lab.sweep, lab.folder, there)
    again.run("tiny")
    assert (again.watching.runs, again.servers) == (0, [])


def test_a_sweep_that_was_cut_off_goes_on(there: InThread, tmp_path: Path) -> None:
    sweep = quick(families={"tiny": {}}, loads=["single", "20/s"])
    left = iter(range(3))

    def breaking(plan: LoadPlan) -> GeneratorRun:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return good(plan)

    first = Lab(sweep, new_folder(tmp_path), there, breaking)
    with pytest.raises(KeyboardInterrupt):
        first.run("tiny")
    before = first.measurements
    with (first.folder.path / "cells.jsonl").open("a") as file:
        file.write('{"family": "ti')  # as a crash leaves it

    second = Lab(sweep, first.folder, there)
    second.run("tiny")

    assert len(before) == 3
    assert second.measurements[:3] == before
    assert len(second.plans) == 1
    assert len({(one.block, *one.cell) for one in second.measurements}) == 4


def test_what_is_compared_comes_one_after_the_other(there: InThread, tmp_path: Path) -> None:
    lab = Lab(quick(blocks=1, loads=["single", "20/s", "30/s"]), new_folder(tmp_path), there)
    lab.run()

    loads = [run.cell.load for run in lab.watching.cell_runs]
    assert loads[0::2] == loads[1::2]


def test_void_runs_are_tried_again_and_stay_in_the_journal(there: InThread, tmp_path: Path) -> None:
    tries = Counter[int]()

    def sometimes(plan: LoadPlan) -> GeneratorRun:
        tries[plan.seed] += 1
        return busy(plan) if tries[plan.seed] == 1 else good(plan)

    lab = Lab(quick(families={"tiny": {}}, loads=["single"]), new_folder(tmp_path), there, sometimes)
    lab.run("tiny")

    assert [(one.block, one.attempt, bool(one.void)) for one in lab.measurements] == [
        (1, 1, True),
        (1, 2, False),
        (2, 1, True),
        (2, 2, False),
    ]
    assert "the generator used" in lab.measurements[0].void[0]


def test_what_the_server_did_is_not_tried_away(there: InThread, tmp_path: Path) -> None:
    lab = Lab(quick(families={"tiny": {}}, loads=["20/s"]), new_folder(tmp_path), there, stalling)
    lab.run("tiny")

    assert [(one.block, one.attempt, one.void) for one in lab.measurements] == [(1, 1, ()), (2, 1, ())]
    for one in lab.measurements:
        assert one.overloaded == ("1 of 10 requests failed with DEADLINE_EXCEEDED",)
        assert (one.errors, one.requests) == (1, 10)
        assert one.p99_ms is not None
        assert one.p99_ms > 300

    again = Lab(lab.sweep, lab.folder, there)
    again.run("tiny")
    assert again.watching.runs == 0


def test_tries_end(there: InThread, tmp_path: Path) -> None:
    lab = Lab(quick(families={"tiny": {}}, loads=["single", "50%"]), new_folder(tmp_path), there, busy)
    lab.run("tiny")

    by_load = Counter(one.load for one in lab.measurements)
    assert by_load[THROUGHPUT] == 3 + 1
    assert by_load["single"] == 4
    # Without a throughput there is no rate; that is said once in each block.
    assert by_load["50%"] == 2
    assert {one.void for one in lab.measurements if one.load == "50%"} == {
        ("the throughput of the configuration is not known",)
    }

    # Who gives the command again wants them tried again.
    again = Lab(lab.sweep, lab.folder, there)
    again.run("tiny")
    assert len([one for one in again.measurements if not one.void]) == 3 + 2 * 2


def carrying(most: float, *, sendable: float = math.inf) -> Callable[[LoadPlan], GeneratorRun]:
    """A server that answers in 5 ms up to a rate, and in 100 ms beyond it; and what a generator can send."""

    def generate(plan: LoadPlan) -> GeneratorRun:
        if (plan.rate or 0) > sendable:
            return busy(plan)
        count = 100 if plan.rate is None else max(1, round(plan.rate * plan.seconds))
        late = plan.rate is not None and plan.rate > most
        records = make_records(count, median_ms=100.0 if late else 5.0, seconds=plan.seconds)
        return make_run(records, seconds=plan.seconds, cpu_seconds=0.01)

    return generate


def searching() -> Sweep:
    short: dict[str, Any] = {"loads": ["single"], "blocks": 1, "rounds": 3, "search_seconds": 0.5}
    return quick(families={"tiny": {}}, target={"p99": "50ms"}, **short)


def test_the_largest_rate_that_holds_is_searched_in_rounds(there: InThread, tmp_path: Path) -> None:
    lab = Lab(searching(), new_folder(tmp_path), there, carrying(150))
    lab.run("tiny")

    found = [one for one in lab.measurements if one.load == "p99 50ms"]
    assert {one.block for one in found} == {1, 2, 3}
    assert all((one.late == 0) is (one.rate is not None and one.rate <= 150) for one in found)
    assert {plan.seconds for plan in lab.plans if plan.rate} == {2.5}  # 50 times the limit
    (capacity,) = read_findings(lab.folder).capacities
    assert capacity.interval is not None
    assert capacity.interval.value == pytest.approx(150, rel=0.06)
    # Throughputs, blocks and rounds have servers of their own, and the progress ends where the runs do.
    assert len(lab.servers) == 3 + 1 + 3
    assert lab.watching.left == 0

    again = Lab(lab.sweep, lab.folder, there)
    again.run("tiny")
    assert (again.watching.runs, again.servers) == (0, [])


def test_a_search_that_was_cut_off_goes_on_where_it_was(there: InThread, tmp_path: Path) -> None:
    whole = Lab(searching(), new_folder(tmp_path / "whole"), there, carrying(150))
    whole.run("tiny")
    left = iter(range(7))

    def breaking(plan: LoadPlan) -> GeneratorRun:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return carrying(150)(plan)

    first = Lab(whole.sweep, new_folder(tmp_path / "cut"), there, breaking)
    with pytest.raises(KeyboardInterrupt):
        first.run("tiny")
    second = Lab(whole.sweep, first.folder, there, carrying(150))
    second.run("tiny")

    assert len(first.plans) > 4
    assert [one.rate for one in second.measurements] == [one.rate for one in whole.measurements]


def test_another_limit_is_searched_in_the_same_folder(there: InThread, tmp_path: Path) -> None:
    lab = Lab(searching(), new_folder(tmp_path), there, carrying(150))
    lab.run("tiny")
    before = len(lab.measurements)
    lab.sweep = lab.sweep.model_copy(update={"target": ServiceTarget(p99="40ms")})
    lab.run("tiny")

    assert {one.load for one in lab.measurements[before:]} == {"p99 40ms"}


def test_what_the_generator_cannot_send_ends_a_search(there: InThread, tmp_path: Path) -> None:
    lab = Lab(searching(), new_folder(tmp_path), there, carrying(1000, sendable=400))
    lab.run("tiny")

    (capacity,) = read_findings(lab.folder).capacities
    assert capacity.interval is not None
    assert 200 < capacity.interval.low <= 400
    assert math.isinf(capacity.interval.high)
    # A void run is tried again twice, and then ends the round.
    assert Counter(one.block for one in lab.measurements if one.void) == {1: 3, 2: 3, 3: 3}


def test_a_generator_that_fails_voids_the_run(there: InThread, tmp_path: Path) -> None:
    def failing(_: LoadPlan) -> GeneratorRun:
        raise ProcessError("ended by signal 9")

    lab = Lab(quick(families={"tiny": {}}, loads=["single"], retries=0), new_folder(tmp_path), there, failing)
    lab.run("tiny")

    assert {one.void for one in lab.measurements} == {("the generator ended by signal 9",)}


def test_a_family_whose_server_keeps_ending_is_given_up(there: InThread, tmp_path: Path) -> None:
    def deadly(plan: LoadPlan) -> GeneratorRun:
        if plan.model == "tiny":
            lab.servers[-1].lives = False
        return good(plan)

    lab = Lab(quick(loads=["single", "20/s"], blocks=3), new_folder(tmp_path), there, deadly)
    runner = lab.run()

    assert runner.skipped == {"tiny": "its server ended 3 times in a row, see server.log"}
    assert Counter(one.family for one in lab.measurements) == {"tiny": 3, "tiny-tokens": 6}


def test_a_server_of_somebody_elses_is_waited_for_by_the_user(there: InThread, tmp_path: Path) -> None:
    def dying(plan: LoadPlan) -> GeneratorRun:
        lab.servers[-1].lives = False
        return bad(plan)

    lab = Lab(quick(loads=["single"]), new_folder(tmp_path), there, dying)

    with pytest.raises(SweepError, match="answers no more: start it, and give the same command again"):
        lab.run(own=False)
    assert len(lab.measurements) == 1


def test_families_that_the_server_does_not_have_are_skipped(there: InThread, tmp_path: Path) -> None:
    sweep = quick(families={"tiny": {}, "absent": {}}, loads=["single"])
    lab = Lab(sweep, new_folder(tmp_path), there)
    runner = lab.run("tiny", "absent")

    assert runner.skipped == {"absent": "the server does not have it"}
    assert {one.family for one in lab.measurements} == {"tiny"}
