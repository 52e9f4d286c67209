"""One run of one cell: warm up, generate, judge."""

import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polyhead_client import Client
from polyhead_load.plan import Plan
from polyhead_load.records import OK, SHED, Records, Run
from polyhead_load.sweep.cells import CAPACITY, Cell
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.gates import overload, reasons, unchecked
from polyhead_load.sweep.journal import Measurement, no_room
from polyhead_load.sweep.machine import Moment
from polyhead_load.sweep.processes import ProcessError
from polyhead_load.sweep.server import Server
from polyhead_load.sweep.spec import Sweep
from polyhead_load.sweep.warm_up import WarmUp, warm_up

_CAPACITY_ANSWERS = 100
_LONGER = 4
"""Times longer than other runs: the most that a capacity may take."""
_FEWEST = 10
"""Answers; between fewer than that the time is too much a matter of chance."""

Generate = Callable[[Plan, Path], Run]
WarmingUp = Callable[[Client, Plan, float, float], WarmUp]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Which run of which cell."""

    cell: Cell
    block: int
    attempt: int

    def measurement(self, started: str, **found: object) -> Measurement:
        """Return the run's line of the journal."""
        return Measurement.model_validate(
            {
                **self.cell.configuration.labels,
                "load": self.cell.load,
                "block": self.block,
                "attempt": self.attempt,
                "started": started,
                **found,
            }
        )

    @property
    def records(self) -> str:
        """The name of the file of its requests."""
        number = zlib.crc32(str(self.cell).encode())
        return f"records/{self.block:02d}-{number:08x}-{self.attempt}.npz"


def now() -> str:
    """Return the time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def measure(
    turn: Turn,
    plan: Plan,
    sweep: Sweep,
    *,
    server: Server,
    folder: RunFolder,
    generate: Generate,
    warm: WarmingUp = warm_up,
) -> Measurement:
    """Measure once.

    Args:
        turn: What.
        plan: How the generator is to call it.
        sweep: Says how long to warm up, and what makes a run void.
        server: Where.
        folder: Where the records go.
        generate: Runs the generator.
        warm: Warms up.

    Raises:
        PolyheadError: The warm-up failed.
        SweepError: There is no room for the records.
    """
    started = now()
    with plan.access.client(plan.address, timeout=plan.timeout_seconds) as client:
        warmed = warm(client, plan, sweep.warm_up_seconds, sweep.gates.warm_up)
    plan = _long_enough(plan, turn, warmed)
    before = Moment.now(server.cpu_seconds())
    with tempfile.TemporaryDirectory(prefix=".generator-", dir=folder.path) as scratch:
        try:
            run = generate(plan, Path(scratch))
        except ProcessError as error:
            return turn.measurement(started, void=[f"the generator {error}"], rate=plan.rate)
    after = Moment.now(server.cpu_seconds())
    usage = before.until(after)
    void = reasons(run, plan, sweep.gates, usage)
    if not warmed.stable:
        void = (f"it did not answer equally fast within {warmed.seconds:.0f} s of warm-up", *void)
    try:
        run.records.write(folder.path / turn.records)
    except OSError as error:
        raise no_room(folder.path / turn.records, error) from error
    busy = None if before.server is None or after.server is None else after.server - before.server
    return turn.measurement(
        started,
        void=void,
        overloaded=overload(run, plan, sweep.gates),
        unchecked=unchecked(run, plan),
        foreign_cpu=usage.foreign,
        steal=usage.steal,
        records=turn.records,
        server_mib=server.memory_mib(),
        server_cpu=None if busy is None else busy / (plan.warm_up_seconds + plan.seconds),
        **_found(run, plan, warmed),
    )


def _long_enough(plan: Plan, turn: Turn, warm: WarmUp) -> Plan:
    """Lengthen a capacity run to a hundred answers, by the pace of the warm-up, within reason."""
    if turn.cell.load != CAPACITY or not warm.seconds:
        return plan
    needed = _CAPACITY_ANSWERS * warm.seconds / warm.requests
    return replace(plan, seconds=min(max(plan.seconds, needed), _LONGER * plan.seconds))


def _found(run: Run, plan: Plan, warm: WarmUp) -> dict[str, object]:
    records = run.records
    found: dict[str, object] = {
        "rate": plan.rate,
        "warm_up_seconds": warm.seconds,
        "generator_priority": run.facts.get("priority"),
        "requests": len(records.planned),
        "shed": int((records.code == SHED).sum()),
        "errors": int(((records.code != OK) & (records.code != SHED)).sum()),
    }
    latency = records.latency_ms
    if not len(latency):
        return found
    p50, p95, p99 = np.quantile(latency, [0.5, 0.95, 0.99], method="inverted_cdf").tolist()
    good = records.answered
    return found | {
        "achieved": throughput(records, plan),
        "mean_ms": float(latency.mean()),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "send_lag_p99_ms": float(np.quantile(records.lag_ms, 0.99)),
        "generator_cpu": run.facts["cpu_seconds"] / run.facts["seconds"],
        "request_bytes": float(records.request_bytes[good].mean()),
        "reply_bytes": float(records.reply_bytes[good].mean()),
    }


def throughput(records: Records, plan: Plan) -> float:
    """Return answers a second, between the first of them and the last.

    Of a closed loop only those within the window: behind it, fewer and fewer are in flight.
    """
    done = records.done[records.answered]
    if plan.mode == "closed":
        done = done[done <= plan.seconds]
    if len(done) < _FEWEST or done.max() == done.min():
        return int(records.answered.sum()) / max(plan.seconds, float(np.nanmax(records.done)))
    return (len(done) - 1) / float(done.max() - done.min())
