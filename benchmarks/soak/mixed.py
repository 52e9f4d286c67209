"""Mixed load, in which a server must lose, leak and miscount nothing.

Calls come at Poisson times (`--rate`), from callers that behave, err, come late, leave or are killed. The
random decisions follow from `--seed`.
"""

import asyncio
import random
import time
from argparse import Namespace

from rich.progress import Progress

from benchmarks.contenders import Contender, polyhead
from benchmarks.encoders import export_missing
from benchmarks.generator import LoadResult, background, send_at
from benchmarks.rounds import console, markdown_table
from benchmarks.soak.checks import SoakRun, judge
from benchmarks.soak.counters import ServerMonitor
from benchmarks.soak.findings import Findings
from benchmarks.soak.requests import SoakEncoders
from benchmarks.soak.traffic import CALL_SECONDS, KINDS, Traffic
from polyhead_load.schedule import poisson

_MAX_REPLY_BYTES = 2**20
"""The server's limit, so that each output of long attention leaves in several parts."""


def run(chosen: Namespace, encoders: SoakEncoders) -> Findings:
    """Soak a server for as long as was chosen."""
    export_missing([encoders.small, encoders.deep, encoders.abandoned], chosen.models)
    with polyhead(chosen.models, ["--max-reply-bytes", str(_MAX_REPLY_BYTES)]) as server:
        run = asyncio.run(_soak(server, encoders, chosen))
    calls: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for (kind, code), number in sorted(run.traffic.counts.items()):
        calls[kind].append(f"{code} {number:,}")
    drops = run.counters_after.metrics.by("polyhead_drops_total", "reason")
    dropped = ", ".join(f"{reason} {number:,}" for (reason,), number in sorted(drops.items()))
    return Findings(
        conditions=judge(run),
        lines=[
            "## Mixed load",
            "",
            f"{run.seconds / 60:.1f} minutes at {run.rate:.0f} calls/s, seed {chosen.seed}; "
            f"{run.server_cores:.2f} cores for the server, {run.client_cores:.2f} for its callers.",
            "",
            *markdown_table({"calls": kind, "ended": ", ".join(codes)} for kind, codes in calls.items()),
            f"Work that the server dropped: {dropped or 'none'}.",
            "",
        ],
        facts={"rate": run.rate, "samples": run.samples},
    )


async def _soak(server: Contender, encoders: SoakEncoders, chosen: Namespace) -> SoakRun:
    """Run the load, and monitor the server."""
    monitor = ServerMonitor(server)
    traffic = Traffic(server.address, encoders, random.Random(chosen.seed))
    counters_before = await monitor.counters()
    await traffic.learn()
    before = await monitor.sample()
    load = LoadResult(server=server.cpu_seconds)
    async with background(monitor.run()), background(traffic.kill_clients()):
        await _load(traffic, rate=chosen.rate, seconds=chosen.seconds, seed=chosen.seed)
        load.stop()
    await traffic.close()
    after = await monitor.settled(CALL_SECONDS)
    return SoakRun(
        traffic=traffic,
        samples=monitor.samples,
        before=before,
        after=after,
        counters_before=counters_before,
        counters_after=await monitor.counters(),
        rate=chosen.rate,
        seconds=load.seconds,
        server_cores=load.server_cores,
        client_cores=load.client_cores,
    )


async def _load(traffic: Traffic, *, rate: float, seconds: float, seed: int) -> None:
    """Send at Poisson times, however long the replies take, and wait for them."""
    kinds = traffic.kinds()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("soaking", total=seconds)

        async def send(at: float) -> None:
            ended = f"{traffic.counts.total():,} calls ended"
            progress.update(task, completed=at, description=ended)
            await traffic.send(next(kinds))

        await send_at(poisson(rate, seed, seconds=seconds), send, start=time.perf_counter())
