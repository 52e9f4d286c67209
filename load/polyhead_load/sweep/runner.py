"""Run a sweep block by block: each cell once in each block, in random order."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import KW_ONLY, dataclass
from typing import Self

from polyhead_client import PolyheadError
from polyhead_load.errors import SweepError
from polyhead_load.sweep.cells import (
    THROUGHPUT,
    CellRun,
    SweepCell,
    cells,
    comparison,
    needs_throughput,
    plan_of,
    search_rounds,
    searches,
    throughputs_of,
)
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.measuring import Generate, measure, utc_now
from polyhead_load.sweep.progress import SweepProgress
from polyhead_load.sweep.search import SearchRound, expected_runs, run_seconds
from polyhead_load.sweep.server import MeasuredServer
from polyhead_load.sweep.spec import Sweep

_CRASHES = 3
"""Crashes of a server in a row, under the same family, after which the family is skipped."""

_BUSY_RUNS = 2
"""Void runs at the start that show that the machine is busy."""

_OVERHEAD_SECONDS = 1.5
"""About what a run takes beside its own time: to start the generator."""

StartServer = Callable[[], AbstractContextManager[MeasuredServer]]


@dataclass(eq=False)
class SweepRunner:
    """Measure what a run's folder does not hold yet."""

    sweep: Sweep
    folder: RunFolder
    families: Sequence[str]
    """Those that are served; others are not measured."""
    _: KW_ONLY
    start: StartServer
    """Starts the server, or connects to it."""
    own: bool
    """Whether a server that has ended can be started again."""
    generate: Generate
    """Puts a load on."""
    progress: SweepProgress
    """Is told of each run."""

    def __post_init__(self) -> None:
        self._journal = self.folder.journal()
        self._open = ExitStack()
        self._serving: MeasuredServer | None = None
        # Of this session only: giving the command again tries void runs again, too.
        self._tries: Counter[tuple[int, SweepCell]] = Counter()
        self._crashes: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        """Families that are not measured → why."""
        self.properties: dict[str, dict[str, str]] = {}
        """Family → the properties that the server reports."""

    def run(self) -> None:
        """Measure all that is missing.

        Raises:
            SweepError: It cannot go on; what was measured is kept.
        """
        missing = self.missing
        self.progress.begin(len(missing), sum(map(self._expected_seconds, missing)))
        for block, of_block in self._blocks():
            for _ in range(self._times(block) + self.sweep.retries):
                for cell in self._in_order(of_block, block):
                    if self._wanted(cell, block):
                        self._run_cell(cell, block)
                if block == 0:
                    self._end_server()
            self._end_server()
        for number in range(1, self.sweep.rounds + 1):
            for cell in self._in_order(self._searches, number):
                self._search(cell, number)
                self.progress.expect(len(self.missing))
            self._end_server()

    @property
    def missing(self) -> list[SweepCell]:
        """List the cell of each run to come; of searches, about."""
        runs = [(cell, self._missing(cell, block)) for block, of_block in self._blocks() for cell in of_block]
        rounds = range(1, self.sweep.rounds + 1)
        runs += [(cell, self._to_search(cell, number)) for cell in self._searches for number in rounds]
        return [cell for cell, count in runs for _ in range(count)]

    def _expected_seconds(self, cell: SweepCell) -> float:
        """Return about how long a run takes, with all that belongs to it."""
        kind, limit = parse_load(cell.load)
        seconds = self.sweep.seconds
        if kind == "p99":
            seconds = run_seconds(math.inf, limit, self.sweep.search_seconds)
        return self.sweep.warm_up_seconds + seconds + _OVERHEAD_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _blocks(self) -> list[tuple[int, Sequence[SweepCell]]]:
        """Return the cells of each block; block 0 has the throughputs."""
        served = [cell for cell in cells(self.sweep) if cell.family in self.families]
        throughputs = [cell for cell in served if cell.load == THROUGHPUT]
        others = [cell for cell in served if cell.load != THROUGHPUT]
        return [(0, throughputs), *((block, others) for block in range(1, self.sweep.blocks + 1))]

    @property
    def _searches(self) -> list[SweepCell]:
        """Return the cells whose rate is searched."""
        return [cell for cell in searches(self.sweep) if cell.family in self.families]

    def _times(self, block: int) -> int:
        """Return how often a block measures each cell."""
        return self.sweep.throughput_runs if block == 0 else 1

    def _in_order(self, of_block: Sequence[SweepCell], block: int) -> Iterator[SweepCell]:
        """Yield cells that are compared with each other one after the other, in random order."""
        tries = sum(self._tries.values())
        seeds = f"{self.sweep.seed} {block} {tries}"
        order = random.Random(seeds)  # noqa: S311 - an order, no secret
        together: dict[tuple[str, str], list[SweepCell]] = {}
        for cell in of_block:
            together.setdefault((cell.load, comparison(cell.configuration, self.sweep)), []).append(cell)
        compared = list(together.values())
        order.shuffle(compared)
        for each in compared:
            order.shuffle(each)
            yield from each

    def _search(self, cell: SweepCell, number: int) -> None:
        """Carry out a round of a search, until it is complete or its next rate cannot be measured.

        One rate that is not measured ends a round, so that void runs are tried once more than others.
        """
        void = 0
        most = 2 + self.sweep.retries if self._throughput(cell) else 0
        while void < most and self._to_search(cell, number):
            measurement = self._run_cell(cell, number)
            void = void + 1 if measurement is None or measurement.void else 0

    def _run_cell(self, cell: SweepCell, block: int) -> Measurement | None:
        run = CellRun(cell=cell, block=block, attempt=1 + len(self._of(cell, block)))
        self._tries[block, cell] += 1
        self.progress.start_run(run)
        measurement = self._measure(run)
        if measurement is not None:
            self._journal.append(measurement)
        self.progress.end_run(measurement)
        self._check_busy()
        if self._serving is None or self._serving.alive():
            self._crashes.pop(cell.family, None)
            return measurement
        address = self._serving.address
        self._stop()
        if not self.own:
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
        every, limit = self._journal.measurements, self.sweep.gates.foreign_cpu
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
        """Measure; return None where the family cannot be measured."""
        cell, started = run.cell, utc_now()
        server = self._serve()
        if cell.family in self.skipped:
            return None
        if needs_throughput(cell.load) and not self._throughput(cell):
            return run.measurement(started, void=["the throughput of the configuration is not known"])
        rate = self._rate(cell, run.block)
        plan = plan_of(
            cell, self.sweep, address=server.address, access=server.access, rate=rate, block=run.block
        )
        measurement = measure(
            run, plan, self.sweep, server=server, folder=self.folder, generate=self.generate
        )
        if not server.alive():
            void = ("the server ended meanwhile", *measurement.void)
            measurement = measurement.model_copy(update={"void": void})
        return measurement

    # ---- Rates ----------------------------------------------------------------------------------------

    def _throughput(self, cell: SweepCell) -> float:
        """Return the throughput of a cell's configuration; 0 where it is not known."""
        return throughputs_of(self._journal.measurements).get(cell.configuration.key, 0.0)

    def _rate(self, cell: SweepCell, block: int) -> float | None:
        """Return the rate of an open loop, None for a closed one."""
        kind, value = parse_load(cell.load)
        match kind:
            case "p99":
                return self._round(cell, block).next_rate
            case "share":
                return value * self._throughput(cell)
            case "rate":
                return value
            case _:
                return None

    def _round(self, cell: SweepCell, number: int) -> SearchRound:
        """Return a round of a search, with the runs that it has."""
        return search_rounds(self._runs(cell), number, self._throughput(cell))[-1]

    # ---- What is missing ------------------------------------------------------------------------------

    def _runs(self, cell: SweepCell) -> list[Measurement]:
        key = (*cell.configuration.key, cell.load)
        return [one for one in self._journal.measurements if one.cell == key]

    def _of(self, cell: SweepCell, block: int) -> list[Measurement]:
        return [one for one in self._runs(cell) if one.block == block]

    def _missing(self, cell: SweepCell, block: int) -> int:
        """Return how many more valid runs the cell needs."""
        if cell.family in self.skipped:
            return 0
        return max(0, self._times(block) - sum(one.settled for one in self._of(cell, block)))

    def _to_search(self, cell: SweepCell, number: int) -> int:
        """Return about how many more runs a round of a search needs."""
        if cell.family in self.skipped:
            return 0
        expected = expected_runs(number)
        if not self._throughput(cell):
            return expected
        now = self._round(cell, number)
        return 0 if now.next_rate is None else max(1, expected - len(now.trials))

    def _wanted(self, cell: SweepCell, block: int) -> bool:
        """Return whether valid runs are missing and this session may still try."""
        tries = self._tries[block, cell]
        hopeless = tries > 0 and needs_throughput(cell.load) and not self._throughput(cell)
        most = self._times(block) + self.sweep.retries
        return self._missing(cell, block) > 0 and tries < most and not hopeless

    def _skip(self, what: str, why: str) -> None:
        self.skipped[what] = why
        self.progress.skip(what, why)

    # ---- The server -----------------------------------------------------------------------------------

    def _serve(self) -> MeasuredServer:
        """Return the server; start it where it does not run.

        Raises:
            SweepError: It does not start.
        """
        if self._serving is not None and self._serving.alive():
            return self._serving
        self._stop()
        try:
            self._serving = self._open.enter_context(self.start())
            self._read_properties(self._serving)
        except PolyheadError as error:
            raise SweepError(str(error)) from error
        return self._serving

    def _read_properties(self, server: MeasuredServer) -> None:
        """Keep what the server says of its families, and skip those that it has not loaded."""
        with server.access.client(server.address) as client:
            index = {model.name: model for model in client.models()}
            for family in self.families:
                if family not in index or index[family].state != "READY":
                    why = index[family].reason if family in index else "the server does not have it"
                    self._skip(family, why)
                else:
                    self.properties[family] = dict(client.model(family).properties)

    def _end_server(self) -> None:
        """End the sweep's own server: blocks must differ as processes do, in addresses and allocations."""
        if self.own:
            self._stop()

    def _stop(self) -> None:
        self._serving = None
        self._open.close()
