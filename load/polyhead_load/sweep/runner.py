"""Run a sweep block by block: each cell once in each block, in random order."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from polyhead_client import InvalidRequest, NotFound, PolyheadError, TooLarge
from polyhead_load.errors import SweepError
from polyhead_load.outputs import DEFAULT_OUTPUTS
from polyhead_load.sweep.cells import (
    THROUGHPUT,
    WARM_UP,
    CellRun,
    Rates,
    SweepCell,
    cells,
    comparison,
    plan_of,
    searches,
)
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.measuring import Generate, WarmUpFunction, measure, utc_now
from polyhead_load.sweep.progress import SweepProgress
from polyhead_load.sweep.search import MOST_RUNS, expected_runs, run_seconds
from polyhead_load.sweep.server import MeasuredServer
from polyhead_load.sweep.spec import Sweep
from polyhead_load.sweep.warm_up import warm_up

Group = tuple[str, ...]
"""Families that are served together."""

_CRASHES = 3
"""Crashes of a server in a row, under the same family, after which the family is skipped."""

_BUSY_RUNS = 2
"""Void runs at the start that show that the machine is busy."""

_OVERHEAD_SECONDS = 2.5
"""About what a run takes beside its own time: to warm up, and to start the generator."""

StartServer = Callable[[Group], AbstractContextManager[MeasuredServer]]


class SweepRunner:
    """Measure what a run's folder does not hold yet.

    Families in none of the groups are not measured. `own` says that a server that has ended can be started
    again.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: RunFolder,
        groups: Sequence[Group],
        *,
        start: StartServer,
        own: bool,
        generate: Generate,
        progress: SweepProgress,
        warm: WarmUpFunction = warm_up,
    ) -> None:
        self._sweep = sweep
        self._folder = folder
        self._groups = list(groups)
        self._start = start
        self._own = own
        self._generate = generate
        self._progress = progress
        self._warm = warm
        self._journal = folder.journal()
        self._rates = Rates(sweep, folder)
        self._open = ExitStack()
        self._serving: tuple[Group, MeasuredServer] | None = None
        # Of this session only: giving the command again tries void runs again, too.
        self._tries: Counter[tuple[int, SweepCell]] = Counter()
        self._crashes: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        """Families and configurations that are not measured → why."""
        self.properties: dict[str, dict[str, str]] = {}
        """Family → the properties that the server reports."""
        self.default_outputs: dict[str, str] = {}
        """Family → what is fetched where a sweep does not say."""

    def run(self) -> None:
        """Measure all that is missing.

        Raises:
            SweepError: It cannot go on; what was measured is kept.
        """
        self._announce()
        for block, of_block in self._blocks():
            if block == 1:
                self._rates.fix(self._journal.measurements)
            for _ in range(self._times(block) + self._sweep.retries):
                self._pass(block, of_block)
                if self._own and block == 0:
                    self._stop()
            if self._own:
                # Addresses, hashes and allocations differ between processes; so must they between blocks.
                self._stop()
        self._rates.fix(self._journal.measurements)
        for number in range(1, self._sweep.rounds + 1):
            for cell in self._in_order(self._searches, number):
                self._search(cell, number)
            if self._own:
                self._stop()

    @property
    def missing(self) -> int:
        """Count the runs to come; of searches, about."""
        rounds = range(1, self._sweep.rounds + 1)
        return sum(
            [self._missing(cell, block) for block, of_block in self._blocks() for cell in of_block]
            + [self._to_search(cell, number) for cell in self._searches for number in rounds]
        )

    def _announce(self) -> None:
        """Say how many runs there are to come, and how long they take."""
        about = most = 0.0
        for block, of_block in self._blocks():
            for cell in of_block:
                missing, one = self._missing(cell, block), self._expected_seconds(cell)
                about += missing * one
                most += (missing + self._sweep.retries * (missing > 0)) * one
        for cell in self._searches:
            for number in range(1, self._sweep.rounds + 1):
                missing, one = self._to_search(cell, number), self._expected_seconds(cell)
                about += missing * one
                most += MOST_RUNS * (missing > 0) * one
        self._progress.begin(self.missing, about, most)

    def _expected_seconds(self, cell: SweepCell) -> float:
        """Return about how long a run takes, with all that belongs to it."""
        kind, limit = parse_load(cell.load)
        seconds = self._sweep.seconds
        if kind == "p99":
            seconds = run_seconds(math.inf, limit, self._sweep.search_seconds)
        return WARM_UP * seconds + _OVERHEAD_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _blocks(self) -> list[tuple[int, Sequence[SweepCell]]]:
        """Return the cells of each block; block 0 has the throughputs."""
        served = [cell for cell in cells(self._sweep) if self._group_of(cell) is not None]
        throughputs = [cell for cell in served if cell.load == THROUGHPUT]
        others = [cell for cell in served if cell.load != THROUGHPUT]
        return [(0, throughputs), *((block, others) for block in range(1, self._sweep.blocks + 1))]

    @property
    def _searches(self) -> list[SweepCell]:
        """Return the cells whose rate is searched."""
        return [cell for cell in searches(self._sweep) if self._group_of(cell) is not None]

    def _times(self, block: int) -> int:
        """Return how often a block measures each cell."""
        return self._sweep.throughput_runs if block == 0 else 1

    def _pass(self, block: int, of_block: Sequence[SweepCell]) -> None:
        """Measure each missing cell of the block once."""
        for cell in self._in_order(of_block, block):
            if self._wanted(cell, block):
                self._run_cell(cell, block)

    def _in_order(self, of_block: Sequence[SweepCell], block: int) -> Iterator[SweepCell]:
        """Yield cells that are compared with each other one after the other, in random order."""
        tries = sum(self._tries.values())
        seeds = f"{self._sweep.seed} {block} {tries}"
        order = random.Random(seeds)  # noqa: S311 - an order, no secret
        together: dict[tuple[str, str], list[SweepCell]] = {}
        for cell in of_block:
            together.setdefault((cell.load, comparison(cell.configuration, self._sweep)), []).append(cell)
        compared = list(together.values())
        order.shuffle(compared)
        for each in compared:
            order.shuffle(each)
        groups = list(self._groups)
        order.shuffle(groups)
        for group in groups:
            yield from (cell for each in compared for cell in each if cell.family in group)

    def _search(self, cell: SweepCell, number: int) -> None:
        """Carry out a round of a search, until it is complete or its next rate cannot be measured.

        One rate that is not measured ends a round, so that void runs are tried once more than others.
        """
        expected = self._to_search(cell, number)
        runs = void = 0
        most = 2 + self._sweep.retries if self._rates.knows(cell) else 0
        while void < most and self._to_search(cell, number):
            measurement = self._run_cell(cell, number)
            void = void + 1 if measurement is None or measurement.void else 0
            runs += not void
        self._progress.expect(runs - expected, (runs - expected) * self._expected_seconds(cell))

    def _run_cell(self, cell: SweepCell, block: int) -> Measurement | None:
        run = CellRun(cell=cell, block=block, attempt=1 + len(self._of(cell, block)))
        self._tries[block, cell] += 1
        self._progress.start_run(run)
        measurement = self._measure(run)
        if measurement is not None:
            self._journal.append(measurement)
        self._progress.end_run(measurement, self._expected_seconds(cell))
        self._check_busy()
        if self._serving is None or self._serving[1].alive():
            self._crashes.pop(cell.family, None)
            return measurement
        address = self._serving[1].address
        self._stop()
        if not self._own:
            raise SweepError(
                f"the server at {address} answers no more: start it, and give the same command again "
                "to go on; what was measured is kept"
            )
        self._crashes[cell.family] += 1
        if self._crashes[cell.family] >= _CRASHES:
            self._skip(cell.family, f"its server ended {_CRASHES} times in a row, see server.log")
        return measurement

    def _check_busy(self) -> None:
        """End a sweep that begins on a busy machine: all of its runs would be void.

        Raises:
            SweepError: The first runs were all void because of what else ran.
        """
        every, limit = self._journal.measurements, self._sweep.gates.foreign_cpu
        if sum(self._tries.values()) != _BUSY_RUNS or any(one.settled for one in every):
            return
        used = [max(one.foreign_cpu or 0.0, one.steal or 0.0) for one in every[-_BUSY_RUNS:]]
        if used and min(used) > limit:
            allowed = math.ceil(10 * max(used) + 1) / 10
            raise SweepError(
                f"the first {_BUSY_RUNS} runs are void: other processes, or the machine's host, used up to "
                f"{max(used):.2f} cores meanwhile (limit: {limit:g}), and that changes what is measured. End "
                f"them (top shows them), or allow as much with --foreign-cpu {allowed:g}: latencies then say "
                "less, and the report names the limit"
            )

    def _measure(self, run: CellRun) -> Measurement | None:
        """Measure; return None where the configuration or its family cannot be measured."""
        cell, started = run.cell, utc_now()
        server = self._serve(cell)
        if server is None or cell.family in self.skipped:
            return None
        try:
            rate = self._rate(cell, run.block)
        except KeyError:
            return run.measurement(started, void=["the throughput of the configuration is not known"])
        plan = plan_of(
            cell, self._sweep, address=server.address, access=server.access, rate=rate, block=run.block
        )
        try:
            measurement = measure(
                run,
                plan,
                self._sweep,
                server=server,
                folder=self._folder,
                generate=self._generate,
                warm=self._warm,
            )
        except (InvalidRequest, NotFound, TooLarge) as error:
            self._skip(str(cell.configuration), str(error))
            return None
        except PolyheadError as error:
            measurement = run.measurement(started, void=[f"the warm-up failed: {error}"], rate=rate)
        if not server.alive():
            void = ("the server ended meanwhile", *measurement.void)
            measurement = measurement.model_copy(update={"void": void})
        return measurement

    def _rate(self, cell: SweepCell, block: int) -> float | None:
        """Return the rate of an open loop, None for a closed one.

        Raises:
            KeyError: The cell needs a throughput that is not known.
        """
        if parse_load(cell.load).kind == "p99":
            return self._rates.search(cell, self._journal.measurements)[block - 1].next_rate
        return self._rates.of(cell)

    # ---- What is missing ------------------------------------------------------------------------------

    def _of(self, cell: SweepCell, block: int) -> list[Measurement]:
        key = (*cell.configuration.key, cell.load)
        return [one for one in self._journal.measurements if one.block == block and one.cell == key]

    def _missing(self, cell: SweepCell, block: int) -> int:
        """Return how many more valid runs the cell needs."""
        if self._is_skipped(cell):
            return 0
        return max(0, self._times(block) - sum(one.settled for one in self._of(cell, block)))

    def _to_search(self, cell: SweepCell, number: int) -> int:
        """Return about how many more runs a round of a search needs."""
        if self._is_skipped(cell):
            return 0
        expected = expected_runs(number)
        if not self._rates.knows(cell):
            return expected
        now = self._rates.search(cell, self._journal.measurements)[number - 1]
        return 0 if now.next_rate is None else max(1, expected - len(now.trials))

    def _wanted(self, cell: SweepCell, block: int) -> bool:
        """Return whether valid runs are missing and this session may still try."""
        tries = self._tries[block, cell]
        hopeless = tries > 0 and not self._rates.knows(cell)
        most = self._times(block) + self._sweep.retries
        return self._missing(cell, block) > 0 and tries < most and not hopeless

    def _is_skipped(self, cell: SweepCell) -> bool:
        return cell.family in self.skipped or str(cell.configuration) in self.skipped

    def _group_of(self, cell: SweepCell) -> Group | None:
        return next((group for group in self._groups if cell.family in group), None)

    def _skip(self, what: str, why: str) -> None:
        self.skipped[what] = why
        self._progress.skip(what, why)

    # ---- The server -----------------------------------------------------------------------------------

    def _serve(self, cell: SweepCell) -> MeasuredServer | None:
        """Return a server for the cell's family; None where it does not start."""
        group = self._group_of(cell)
        if group is None:
            return None
        if self._serving is not None and self._serving[0] == group and self._serving[1].alive():
            return self._serving[1]
        self._stop()
        try:
            server = self._open.enter_context(self._start(group))
            self._read_properties(group, server)
        except (SweepError, PolyheadError) as error:
            self._stop()
            if not self._own:
                raise SweepError(str(error)) from error
            self._groups.remove(group)
            if len(group) == 1:
                self._skip(cell.family, str(error))
                return None
            # One of them is at fault: each gets a server of its own.
            self._groups += [(family,) for family in group]
            return self._serve(cell)
        self._serving = group, server
        return server

    def _read_properties(self, group: Group, server: MeasuredServer) -> None:
        """Keep what the server says of its families, and skip those that it has not loaded."""
        with server.access.client(server.address) as client:
            index = {model.name: model for model in client.models()}
            for family in group:
                if family not in index or index[family].state != "READY":
                    why = index[family].reason if family in index else "the server does not have it"
                    self._skip(family, why)
                else:
                    info = client.model(family)
                    self.properties[family] = dict(info.properties)
                    self.default_outputs[family] = str(DEFAULT_OUTPUTS.of(info))

    def _stop(self) -> None:
        self._serving = None
        self._open.close()
