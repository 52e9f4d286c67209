"""Measure one cell once: run the generator, and judge the run."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import psutil

from polyhead_load.load_plan import LoadPlan
from polyhead_load.records import OK, SHED, GeneratorRun, Records
from polyhead_load.sweep.cells import CellRun
from polyhead_load.sweep.folder import Measurement, RunFolder, writing
from polyhead_load.sweep.gates import generator_reasons, machine_reasons, overload_reasons
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.processes import ProcessError
from polyhead_load.sweep.server import MeasuredServer
from polyhead_load.sweep.spec import Sweep

_FEWEST_ANSWERS = 10
"""Between fewer answers than that, the elapsed time is mostly chance."""

Generate = Callable[[LoadPlan, Path], GeneratorRun]


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU seconds used so far."""

    at: float
    busy: float
    steal: float
    server: float | None
    """The server's part; None where unknown."""
    own: float
    """The part of the sweep itself and of its generators."""

    @classmethod
    def now(cls, server: float | None) -> Self:
        """Read the system's counters, and add what the server has used."""
        times = psutil.cpu_times()
        own = os.times()
        return cls(
            at=time.monotonic(),
            # Interrupts are left out: those of the loopback interface are the sweep's own traffic.
            busy=times.user + getattr(times, "nice", 0.0) + times.system,
            steal=getattr(times, "steal", 0.0),
            server=server,
            own=own.user + own.system + own.children_user + own.children_system,
        )

    def foreign_cores(self, later: "CpuTimes") -> float | None:
        """Return the cores that other processes kept busy on average, or None where unknown.

        The system counts all processes by ticks and each by its clock, so that none is about 0.
        """
        if self.server is None or later.server is None or later.busy <= self.busy:
            return None
        ours = later.server - self.server + later.own - self.own
        return (later.busy - self.busy - ours) / (later.at - self.at)

    def stolen_cores(self, later: "CpuTimes") -> float:
        """Return the cores that the machine's host took away on average."""
        return (later.steal - self.steal) / (later.at - self.at)


def utc_now() -> str:
    """Return the time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def measure(
    run: CellRun,
    plan: LoadPlan,
    sweep: Sweep,
    *,
    server: MeasuredServer,
    folder: RunFolder,
    generate: Generate,
) -> Measurement:
    """Measure a cell once.

    Raises:
        SweepError: The records cannot be written.
    """
    started = utc_now()
    before = CpuTimes.now(server.cpu_seconds())
    with tempfile.TemporaryDirectory(prefix=".generator-", dir=folder.path) as scratch:
        try:
            generated = generate(plan, Path(scratch))
        except ProcessError as error:
            return run.measurement(started, void=[f"the generator {error}"], rate=plan.rate)
    after = CpuTimes.now(server.cpu_seconds())
    foreign, steal = before.foreign_cores(after), before.stolen_cores(after)
    searched = parse_load(run.cell.load)
    limit = searched.value if searched.kind == "p99" else None
    behind = generator_reasons(generated, plan, sweep.gates, limit_ms=1e3 * (limit or 0))
    disturbed = machine_reasons(sweep.gates, foreign=foreign, steal=steal)
    with writing(folder.path / run.records):
        generated.records.write(folder.path / run.records)
    busy = None if before.server is None or after.server is None else after.server - before.server
    return run.measurement(
        started,
        void=[*behind, *disturbed],
        saturated=bool(behind) and not disturbed,
        overloaded=overload_reasons(generated, plan, sweep.gates),
        rate=plan.rate,
        foreign_cpu=foreign,
        steal=steal,
        records=run.records,
        server_mib=server.memory_mib(),
        server_cpu=None if busy is None else busy / (plan.warm_up_seconds + plan.seconds),
        late=None if limit is None else _late(generated.records, limit),
        **_results(generated, plan),
    )


def _late(records: Records, limit: float) -> int:
    """Count the requests that took longer than a limit, in seconds, or failed."""
    return len(records.planned) - int((records.latency_ms <= 1e3 * limit).sum())


def _results(generated: GeneratorRun, plan: LoadPlan) -> dict[str, object]:
    records = generated.records
    results: dict[str, object] = {
        "generator_priority": generated.facts.get("priority"),
        "requests": len(records.planned),
        "shed": int((records.code == SHED).sum()),
        "errors": int(((records.code != OK) & (records.code != SHED)).sum()),
    }
    latency = records.latency_ms
    if not len(latency):
        return results
    p50, p95, p99 = np.quantile(latency, [0.5, 0.95, 0.99], method="inverted_cdf").tolist()
    return results | {
        "achieved": throughput(records, plan),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "generator_cpu": generated.cpu,
        "request_bytes": float(records.request_bytes[records.answered].mean()),
        "reply_bytes": float(records.reply_bytes[records.answered].mean()),
    }


def throughput(records: Records, plan: LoadPlan) -> float:
    """Return answers a second, between the first and the last.

    Of a closed loop only those within the window: after it, fewer and fewer are in flight.
    """
    done = records.done[records.answered]
    if plan.mode == "closed":
        done = done[done <= plan.seconds]
    if len(done) < _FEWEST_ANSWERS or done.max() == done.min():
        return int(records.answered.sum()) / max(plan.seconds, float(np.nanmax(records.done)))
    return (len(done) - 1) / float(done.max() - done.min())
