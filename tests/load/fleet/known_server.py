"""A server whose truth is known, and sweeps of it: the server's own scheduler on a virtual clock."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tests.server.scheduling.conftest import Bench, Prices, VirtualLoop

from polyhead_load.contents import draw_lengths
from polyhead_load.load_plan import Lengths
from polyhead_load.records import Records
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.spec import Sweep, length_label
from polyhead_server.scheduling.admission import RunningBatch

LANES = 2
CALLERS = 8
LOADS = ("single", "30%", "50%", "70%", "85%")
REST = 6e-4
"""Seconds of a request beside its run and the queue, at least."""
_INSTANT = 1e-9
"""Seconds below which a clock's rounding decides."""


class KnownCosts(Prices):
    """Prices that are true, and that no run changes."""

    def __init__(self, speed: float = 1.0) -> None:
        super().__init__(speed * 8e-4, speed * 5e-5, speed * 5e-8)


class _Cpus:
    """Runs with more threads than there are CPUs share them, and are slower."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._at, self._threads = self._clock(), 0
        self._done = 0.0
        """Seconds that each run would have advanced so far with CPUs for all of its threads."""
        self._changed = asyncio.Event()

    async def run(self, seconds: float, threads: int) -> None:
        self._add(threads)
        end = self._done + seconds
        while (left := end - self._done) > _INSTANT:
            changed = self._changed
            with suppress(TimeoutError):
                async with asyncio.timeout(left * self._slower):
                    await changed.wait()
            self._advance()
        self._add(-threads)

    @property
    def _slower(self) -> float:
        return max(1.0, self._threads / LANES)

    def _advance(self) -> None:
        now = self._clock()
        self._done += (now - self._at) / self._slower
        self._at = now

    def _add(self, threads: int) -> None:
        self._advance()
        self._threads += threads
        self._changed.set()
        self._changed = asyncio.Event()


class _KnownBench(Bench):
    """Its runs take their price and some noise; remembers when they began, and how long they took."""

    def __init__(self, random: np.random.Generator) -> None:
        self._wide = KnownCosts(1.2 / LANES)
        super().__init__(KnownCosts(), lanes=LANES, inline=False, most=10**9, wide=self._wide)
        self._random = random
        self._cpus = _Cpus()
        self.runs: dict[asyncio.Future[Any], tuple[float, float]] = {}

    async def _compute(self, batch: RunningBatch) -> None:
        costs = batch.session.costs
        price = costs.price(self.planner.joint([one.work.size for one in batch.entries]))
        seconds = price * float(np.exp(0.1 * self._random.standard_normal()))
        began = asyncio.get_running_loop().time()
        await self._cpus.run(seconds, LANES if costs is self._wide else 1)
        seconds = asyncio.get_running_loop().time() - began
        self.runs |= {entry.answer: (began, seconds) for entry in batch.entries}


def measure(
    tokens: int | Lengths, requests: int, *, rate: float | None = None, callers: int = 1, seed: int = 0
) -> Records:
    """What a generator would have recorded: at Poisson times, or of callers that wait for their answers."""

    async def run() -> Records:
        random = np.random.default_rng([seed, tokens if isinstance(tokens, int) else 0, requests])
        lengths = iter(draw_lengths(tokens, requests + callers, random))
        bench, clock = _KnownBench(random), asyncio.get_running_loop().time
        rows: list[tuple[float, float, float, float]] = []
        began, left = clock(), requests

        async def request(planned: float) -> None:
            answer = bench.submit(length=next(lengths))
            await answer
            started, seconds = bench.runs.pop(answer)
            rest = REST + float(random.exponential(2e-4))
            rows.append((planned - began, clock() + rest - began, started - planned, seconds))
            await asyncio.sleep(rest)

        async def call() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await request(clock())

        if rate is None:
            await asyncio.gather(*[call() for _ in range(callers)])
        else:
            async with asyncio.TaskGroup() as tasks:
                for at in np.cumsum(random.exponential(1 / rate, requests)).tolist():
                    await asyncio.sleep(began + at - clock())
                    tasks.create_task(request(clock()))
        await bench.scheduler.close()
        return _records(np.array(sorted(rows)))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def _records(rows: Any) -> Records:
    planned, done, queued, seconds = rows.T
    nothing = np.zeros(len(rows), np.int64)
    return Records(
        planned=planned,
        sent=planned,
        done=done,
        code=np.zeros(len(rows), np.int16),
        request_bytes=nothing,
        reply_bytes=nothing,
        parse_ns=nothing,
        tokenise_ns=nothing,
        queue_ns=(queued * 1e9).astype(np.int64),
        compute_ns=(seconds * 1e9).astype(np.int64),
        serialise_ns=nothing,
    )


def swept(
    path: Path,
    *,
    tokens: Sequence[int | Mapping[str, float]],
    loads: Sequence[str] = LOADS,
    requests: int = 600,
    changes: Mapping[tuple[int, str], Mapping[str, Any]] | None = None,
    mixtures: bool = False,
    **fields: Any,
) -> RunFolder:
    """A sweep's run.

    Args:
        path: The run's folder.
        tokens: The lengths.
        loads: Beside the capacity.
        requests: In each run.
        changes: (T, load) → fields of its measurements that differ.
        mixtures: Whether mixtures of lengths are measured, too.
        fields: Of the sweep.
    """
    sweep = {"title": "known", "families": {"known": {}}, "tokens": tokens, "loads": loads, "blocks": 2}
    folder = RunFolder(path)
    machine = {"cores": str(LANES), "processor": "a known processor"}
    what = Sweep.model_validate(sweep | fields)
    folder.begin(
        what,
        {"fingerprint": machine, "server": "its own: polyhead serve", "skipped": {}},
    )
    changed_by_label = {(str(at), load): fields for (at, load), fields in (changes or {}).items()}
    for length in (length for length in what.tokens if mixtures or isinstance(length, int)):
        capacity = 0.0
        for load in ("capacity", *loads):
            rate = capacity * float(load.strip("%")) / 100 if "%" in load else None
            for block in (0,) if load == "capacity" else (1, 2):
                callers = CALLERS if load == "capacity" else 1
                records = measure(length, requests, rate=rate, callers=callers, seed=block)
                name = f"records/{length_label(length)}-{load.strip('%')}-{block}.npz"
                records.write(folder.path / name)
                achieved = (requests - 1) / float(records.done.max() - records.done.min())
                capacity = capacity or achieved
                facts: dict[str, Any] = {
                    "family": "known",
                    "tokens": length_label(length),
                    "batch": "1",
                    "attention": "off",
                    "load": load,
                    "block": block,
                    "attempt": 1,
                    "started": "2026-01-01T00:00:00Z",
                    "rate": rate,
                    "achieved": achieved,
                    "requests": requests,
                    "records": name,
                }
                changed = facts | dict(changed_by_label.get((length_label(length), load), {}))
                folder.journal().append(Measurement.model_validate(changed))
    return folder
