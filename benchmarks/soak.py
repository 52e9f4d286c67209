"""`make soak`: half an hour of mixed load, in which a server must lose, leak and miscount nothing.

The load takes a share of the machine (`--share`, its clients included): calls at Poisson times, from callers
that behave, err, come late, leave or are killed. The random decisions follow from `--seed`.
"""

import asyncio
import random
import sys
import time

import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.encoders import export_missing
from benchmarks.frame import console, finish, markdown_table, options
from benchmarks.load_generator import background, send_at
from benchmarks.monitor import ServerMonitor, ServerSample, trend
from benchmarks.servers import ServerProcess, serve
from benchmarks.soak_checks import SoakRun, judge
from benchmarks.soak_requests import ABANDONED, DEEP, TINY
from benchmarks.soak_traffic import CALL_SECONDS, KINDS, Traffic
from polyhead_load.schedule import poisson

_MAX_REPLY_BYTES = 2**20
"""The server's limit, so that each output of long attention leaves in several parts."""
_CALIBRATION_CALLS = 300
_WARM_UP = 1 / 3
"""Share of the run after which memory is judged."""


async def _soak(server: ServerProcess, *, seconds: float, share: float, seed: int) -> SoakRun:
    """Run the load, and monitor the server."""
    traffic = Traffic(server.address, random.Random(seed))
    counters_before = await asyncio.to_thread(server.counters)
    await traffic.learn()
    rate = await _calibrate(server, traffic, share)
    monitor = ServerMonitor(server)
    before = await monitor.sample()
    start, cpu = time.perf_counter(), _cpu_seconds(server)
    async with background(monitor.run()), background(traffic.kill_clients()):
        await _load(traffic, rate=rate, seconds=seconds, seed=seed)
        elapsed, cpu_after = time.perf_counter() - start, _cpu_seconds(server)
    await traffic.close()
    after = await _settled(monitor)
    late = [sample for sample in monitor.samples if sample.seconds >= _WARM_UP * elapsed]
    return SoakRun(
        traffic=traffic,
        samples=monitor.samples,
        before=before,
        after=after,
        counters_before=counters_before,
        counters_after=await asyncio.to_thread(server.counters),
        rate=rate,
        seconds=elapsed,
        server_cores=(cpu_after[0] - cpu[0]) / elapsed,
        client_cores=(cpu_after[1] - cpu[1]) / elapsed,
        memory=trend([sample.seconds for sample in late], [sample.rss_mib for sample in late]),
    )


async def _calibrate(server: ServerProcess, traffic: Traffic, share: float) -> float:
    """Return the calls per second that keep a share of the machine busy."""
    start = sum(_cpu_seconds(server))
    for _ in range(_CALIBRATION_CALLS):
        await traffic.send(traffic.choose())
    per_call = (sum(_cpu_seconds(server)) - start) / _CALIBRATION_CALLS
    return share * (psutil.cpu_count() or 1) / per_call


async def _load(traffic: Traffic, *, rate: float, seconds: float, seed: int) -> None:
    """Send at Poisson times, however long the replies take, and wait for them."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("soaking", total=seconds)

        async def send(at: float) -> None:
            ended = f"{traffic.counts.total():,} calls ended"
            progress.update(task, completed=at, description=ended)
            await traffic.send(traffic.choose())

        await send_at(poisson(rate, seed, seconds=seconds), send, start=time.perf_counter())


async def _settled(monitor: ServerMonitor) -> ServerSample:
    """Return a sample once nothing is in flight, or when that takes too long."""
    for _ in range(round(CALL_SECONDS)):
        await asyncio.sleep(1)
        sample = await monitor.sample()
        if not sample.in_flight:
            break
    return sample


def _cpu_seconds(server: ServerProcess) -> tuple[float, float]:
    """Return the CPU seconds of the server, and of this process."""
    return server.cpu_seconds(), time.process_time()


def _sections(run: SoakRun) -> list[str]:
    """Return how calls ended, what was dropped, and memory."""
    calls: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for (kind, code), number in sorted(run.traffic.counts.items()):
        calls[kind].append(f"{code} {number:,}")
    drops = run.counters_after.metrics.by("polyhead_drops_total", "reason")
    dropped = ", ".join(f"{reason} {number:,}" for (reason,), number in sorted(drops.items()))
    return [
        *markdown_table({"calls": kind, "ended": ", ".join(codes)} for kind, codes in calls.items()),
        f"Work that the server dropped: {dropped or 'none'}.",
        "",
    ]


def main() -> int:
    """Soak a server, report, and return 0 if every condition holds."""
    parser = options(__doc__, "soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--share", type=float, default=0.4, help="of the machine, clients included")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    export_missing([TINY, DEEP, ABANDONED], arguments.models)
    with serve(arguments.models, ["--max-reply-bytes", str(_MAX_REPLY_BYTES)]) as server:
        run = asyncio.run(
            _soak(server, seconds=60 * arguments.minutes, share=arguments.share, seed=arguments.seed)
        )
    return finish(
        arguments,
        "make soak",
        "Soak",
        _sections(run),
        conditions=judge(run),
        intro=[
            f"{run.seconds / 60:.1f} minutes at {run.rate:.0f} calls/s, seed {arguments.seed}; "
            f"{run.server_cores:.2f} cores for the server, {run.client_cores:.2f} for its callers."
        ],
        facts={"rate": run.rate, "memory": run.memory, "samples": run.samples},
    )


if __name__ == "__main__":
    sys.exit(main())
