"""Run a sweep: block after block, each cell once in each block, in random order."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from polyhead_client import InvalidRequest, NotFound, PolyheadError, TooLarge
from polyhead_load.errors import SweepError
from polyhead_load.sweep.cells import CAPACITY, Cell, cells, comparison, plan_of
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.measuring import Generate, Turn, WarmingUp, measure, now
from polyhead_load.sweep.progress import Bar
from polyhead_load.sweep.rates import Rates
from polyhead_load.sweep.server import Server
from polyhead_load.sweep.spec import Sweep, parse_load
from polyhead_load.sweep.warm_up import warm_up

Group = tuple[str, ...]
"""Families that are served together."""

_DEATHS = 3
"""Crashes of a server in a row, under the same family, after which more tries would end likewise."""

_AROUND_SECONDS = 2.5
"""About what a run takes beside its own time: to warm up, and to start the generator."""

StartServer = Callable[[Group], AbstractContextManager[Server]]


class Runner:
    """Measures what a run's folder does not hold yet.

    Args:
        sweep: What is to be measured.
        folder: The run's.
        groups: Which families are served together. A family that is in none is not measured.
        start: Starts a server of a group.
        own: Whether a server that has ended can be started again.
        generate: Runs the generator.
        bar: Shows the progress.
        warm: Warms up.
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
        bar: Bar,
        warm: WarmingUp = warm_up,
    ) -> None:
        self._sweep = sweep
        self._folder = folder
        self._groups = list(groups)
        self._start = start
        self._own = own
        self._generate = generate
        self._bar = bar
        self._warm = warm
        self._journal = folder.journal()
        self._rates = Rates(sweep, folder)
        self._open = ExitStack()
        self._serving: tuple[Group, Server] | None = None
        # Of this time only: who gives the command again wants void runs tried again, too.
        self._tries: Counter[tuple[int, Cell]] = Counter()
        self._deaths: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        """Families and configurations that are not measured → why."""
        self.properties: dict[str, dict[str, str]] = {}
        """Family → what the server says about it."""

    def run(self) -> None:
        """Measure all that is missing.

        Raises:
            SweepError: It cannot go on; what was measured is kept.
        """
        runs, each = self.missing, 1.15 * self._sweep.seconds + _AROUND_SECONDS
        self._bar.begin(runs, runs * each, (runs + self._retries) * each)
        for block, of_block in self._blocks():
            if block == 1:
                self._rates.fix(self._journal.measurements)
            for _ in range(self._times(block) + self._sweep.retries):
                self._pass(block, of_block)
                if self._own and block == 0:
                    self._stop()
            if self._own:
                # Addresses, hashes and allocations differ from one process to the next: so must the blocks.
                self._stop()

    @property
    def _retries(self) -> int:
        """How often at most what is missing is tried again."""
        cells = [(cell, block) for block, of_block in self._blocks() for cell in of_block]
        return self._sweep.retries * sum(self._missing(cell, block) > 0 for cell, block in cells)

    @property
    def missing(self) -> int:
        """How many runs are to come."""
        return sum(self._missing(cell, block) for block, of_block in self._blocks() for cell in of_block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _blocks(self) -> list[tuple[int, Sequence[Cell]]]:
        there = [cell for cell in cells(self._sweep) if self._group_of(cell) is not None]
        capacities = [cell for cell in there if cell.load == CAPACITY]
        others = [cell for cell in there if cell.load != CAPACITY]
        return [(0, capacities), *((block, others) for block in range(1, self._sweep.blocks + 1))]

    def _times(self, block: int) -> int:
        """Return how often a block measures each cell."""
        return self._sweep.capacity_runs if block == 0 else 1

    def _pass(self, block: int, of_block: Sequence[Cell]) -> None:
        """Measure each cell of the block that is missing, once.

        Cells that are compared with each other come one after the other, in random order.
        """
        tries = sum(self._tries.values())
        order = random.Random(f"{self._sweep.seed} {block} {tries}")  # noqa: S311 - an order, no secret
        together: dict[tuple[str, str], list[Cell]] = {}
        for cell in of_block:
            together.setdefault((cell.load, comparison(cell.configuration, self._sweep)), []).append(cell)
        compared = list(together.values())
        order.shuffle(compared)
        for each in compared:
            order.shuffle(each)
        groups = list(self._groups)
        order.shuffle(groups)
        for group in groups:
            for cell in (cell for each in compared for cell in each):
                if cell.configuration.family in group and self._wanted(cell, block):
                    self._one(cell, block)

    def _one(self, cell: Cell, block: int) -> None:
        attempt = 1 + len(self._of(cell, block))
        turn = Turn(cell=cell, block=block, attempt=attempt)
        self._tries[block, cell] += 1
        self._bar.turn(turn)
        measurement = self._measure(turn)
        if measurement is not None:
            self._journal.append(measurement)
        self._bar.done(measurement)
        if self._serving is None or self._serving[1].alive():
            self._deaths.pop(cell.configuration.family, None)
            return
        address = self._serving[1].address
        self._stop()
        if not self._own:
            raise SweepError(
                f"the server at {address} answers no more: start it, and give the same command again "
                "to go on; what was measured is kept"
            )
        self._deaths[cell.configuration.family] += 1
        if self._deaths[cell.configuration.family] >= _DEATHS:
            self._skip(
                cell.configuration.family, f"its server ended {_DEATHS} times in a row, see server.log"
            )

    def _measure(self, turn: Turn) -> Measurement | None:
        """Measure; return None where the cell, or its whole family, cannot be measured at all."""
        cell = turn.cell
        started = now()
        server = self._serve(cell)
        if server is None or cell.configuration.family in self.skipped:
            return None
        try:
            rate = self._rates.of(cell)
        except KeyError:
            return turn.measurement(started, void=["the capacity of the configuration is not known"])
        plan = plan_of(
            cell,
            self._sweep,
            address=server.address,
            access=server.access,
            rate=rate,
            block=turn.block,
        )
        try:
            measurement = measure(
                turn,
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
            measurement = turn.measurement(started, void=[f"the warm-up failed: {error}"], rate=rate)
        if not server.alive():
            measurement = measurement.model_copy(
                update={"void": ("the server ended meanwhile", *measurement.void)}
            )
        return measurement

    # ---- What is there, and what is missing ----------------------------------------------------------

    def _of(self, cell: Cell, block: int) -> list[Measurement]:
        key = (*cell.configuration.key, cell.load)
        return [one for one in self._journal.measurements if one.block == block and one.cell == key]

    def _missing(self, cell: Cell, block: int) -> int:
        """Return how many more runs of it count."""
        if cell.configuration.family in self.skipped or str(cell.configuration) in self.skipped:
            return 0
        return max(0, self._times(block) - sum(one.settled for one in self._of(cell, block)))

    def _wanted(self, cell: Cell, block: int) -> bool:
        """Return whether runs of it are missing, and this sweep may still try."""
        tries = self._tries[block, cell]
        hopeless = (
            tries > 0
            and parse_load(cell.load).kind in {"share", "common"}
            and not self._rates.knows(cell.configuration)
        )
        most = self._times(block) + self._sweep.retries
        return self._missing(cell, block) > 0 and tries < most and not hopeless

    def _group_of(self, cell: Cell) -> Group | None:
        return next((group for group in self._groups if cell.configuration.family in group), None)

    def _skip(self, what: str, why: str) -> None:
        self.skipped[what] = why
        self._bar.skipped(what, why)

    # ---- The server -----------------------------------------------------------------------------------

    def _serve(self, cell: Cell) -> Server | None:
        """Return the server of the cell's family; None where it does not start."""
        group = self._group_of(cell)
        if group is None:
            return None
        if self._serving is not None and self._serving[0] == group and self._serving[1].alive():
            return self._serving[1]
        self._stop()
        try:
            server = self._open.enter_context(self._start(group))
            self._look_around(group, server)
        except (SweepError, PolyheadError) as error:
            self._stop()
            if not self._own:
                raise SweepError(str(error)) from error
            if len(group) == 1:
                self._groups.remove(group)
                self._skip(cell.configuration.family, str(error))
                return None
            # One of them is to blame: each gets a server of its own.
            self._groups.remove(group)
            self._groups += [(family,) for family in group]
            return self._serve(cell)
        self._serving = group, server
        return server

    def _look_around(self, group: Group, server: Server) -> None:
        """Skip families that the server has not loaded, and keep what it says of the others."""
        with server.access.client(server.address) as client:
            index = {model.name: model for model in client.models()}
            for family in group:
                if family not in index or index[family].state != "READY":
                    why = index[family].reason if family in index else "the server does not have it"
                    self._skip(family, why)
                else:
                    self.properties[family] = dict(client.model(family).properties)

    def _stop(self) -> None:
        self._serving = None
        self._open.close()
