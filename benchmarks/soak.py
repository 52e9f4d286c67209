"""`make soak`: half an hour of mixed load, in which a server must lose, leak and miscount nothing.

The load takes a share of the machine (`--share`, its clients included): calls at Poisson times, from callers
who behave, err, come late, leave or are killed. The random decisions follow from `--seed`.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from conditions import Condition, Counted, Run, Tally, judge, table_of
from encoders import export_missing
from load import channel_to, unary
from payloads import FAMILIES, MAX_REPLY_BYTES
from polyhead_load.schedule import poisson
from polyhead_load.sweep.fingerprint import fingerprint
from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from servers import Served, polyhead_server
from soak_report import as_markdown, draw
from traffic import KINDS, LIMIT_SECONDS, Traffic
from watch import Sample, Watch, slope

_KILL_EVERY_SECONDS = 8.0
_CALIBRATION_CALLS = 300
_WARM_UP = 1 / 3

console = Console()


async def count(served: Served) -> Counted:
    """Read metrics and statistics."""
    rpc = RPCS["ModelStatistics"]
    async with channel_to(served.address) as channel:
        data = await unary(channel, rpc.path)(b"")
    models = pb.ModelStatisticsResponse.FromString(data).model_stats
    return Counted(
        metrics=await asyncio.to_thread(served.metrics),
        statistics={
            one.name: Tally(
                one.inference_stats.success.count,
                one.inference_stats.fail.count,
                one.inference_count,
            )
            for one in models
        },
    )


def used(served: Served) -> tuple[float, float]:
    """Return the CPU seconds of the server, and of this process."""
    return served.cpu_seconds(), time.process_time()


async def calibrate(served: Served, traffic: Traffic, dice: random.Random, share: float) -> float:
    """Return the calls a second that keep a share of the machine busy."""
    start = sum(used(served))
    for kind in choose(dice, _CALIBRATION_CALLS):
        await traffic.send(kind)
    per_call = (sum(used(served)) - start) / _CALIBRATION_CALLS
    return share * (psutil.cpu_count() or 1) / per_call


def choose(dice: random.Random, calls: int) -> list[str]:
    """Draw kinds of traffic by their weights."""
    return dice.choices(list(KINDS), [kind.weight for kind in KINDS.values()], k=calls)


async def load(traffic: Traffic, dice: random.Random, *, rate: float, seconds: float, seed: int) -> None:
    """Send at Poisson times, however long the replies take, and wait for them."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("soaking", total=seconds)
        start = time.perf_counter()
        async with asyncio.TaskGroup() as sending:
            for planned in poisson(rate, seed, seconds=seconds):
                await asyncio.sleep(max(0.0, start + planned - time.perf_counter()))
                sending.create_task(traffic.send(choose(dice, 1)[0]))
                progress.update(
                    task, completed=planned, description=f"{traffic.counts.total():,} calls ended"
                )


async def soak(served: Served, *, seconds: float, share: float, seed: int) -> Run:
    """Run the load, and watch the server."""
    dice = random.Random(seed)
    traffic = Traffic(served.address, dice)
    counted_before = await count(served)
    await traffic.learn()

    def client() -> tuple[int, int, int]:
        fine = sum(number for (_, code), number in traffic.counts.items() if code == "OK")
        return traffic.awaited, traffic.counts.total(), traffic.counts.total() - fine

    rate = await calibrate(served, traffic, dice, share)
    watch = Watch(served, client)
    before = await watch.look()
    start, (server_cpu, client_cpu) = time.perf_counter(), used(served)
    watching = asyncio.create_task(watch.run())
    killing = asyncio.create_task(traffic.kill_clients(_KILL_EVERY_SECONDS))
    await load(traffic, dice, rate=rate, seconds=seconds, seed=seed)
    elapsed, (server_cpu_after, client_cpu_after) = time.perf_counter() - start, used(served)
    for task in (killing, watching):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await traffic.close()
    after = await settled(watch)
    late = [sample for sample in watch.samples if sample.seconds >= _WARM_UP * elapsed]
    return Run(
        traffic=traffic,
        samples=watch.samples,
        before=before,
        after=after,
        counted_before=counted_before,
        counted_after=await count(served),
        rate=rate,
        seconds=elapsed,
        server_cores=(server_cpu_after - server_cpu) / elapsed,
        client_cores=(client_cpu_after - client_cpu) / elapsed,
        memory=slope([sample.seconds for sample in late], [sample.rss_mib for sample in late]),
    )


async def settled(watch: Watch) -> Sample:
    """Return a sample once nothing is in flight, or when that takes too long."""
    for _ in range(round(LIMIT_SECONDS)):
        await asyncio.sleep(1)
        sample = await watch.look()
        if not sample.in_flight:
            break
    return sample


def as_json(run: Run, conditions: Sequence[Condition], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the run, as data."""
    calls: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for (kind, code), number in sorted(run.traffic.counts.items()):
        calls[kind][code] = number
    drops = run.counted_after.metrics.by("polyhead_drops_total", "reason")
    return {
        "fingerprint": fingerprint(sys.argv),
        "minutes": arguments.minutes,
        "seed": arguments.seed,
        "share": arguments.share,
        "rate": run.rate,
        "seconds": run.seconds,
        "server_cores": run.server_cores,
        "client_cores": run.client_cores,
        "calls": calls,
        "drops": {reason: number for (reason,), number in sorted(drops.items())},
        "memory": asdict(run.memory) | {"peak_mib": max(sample.rss_mib for sample in run.samples)},
        "conditions": [asdict(condition) for condition in conditions],
        "samples": [asdict(sample) for sample in run.samples],
    }


def main() -> int:
    """Soak a server, report, and return 0 where everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--share", type=float, default=0.4, help="of the machine, clients included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=Path("build/soak-models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/soak"), help="without a suffix")
    arguments, serve_arguments = parser.parse_known_args()
    export_missing(FAMILIES, arguments.models)
    limit = ["--max-reply-bytes", str(MAX_REPLY_BYTES)]
    with polyhead_server(arguments.models, [*limit, *serve_arguments]) as served:
        run = asyncio.run(
            soak(served, seconds=60 * arguments.minutes, share=arguments.share, seed=arguments.seed)
        )
    conditions = judge(run)
    result = as_json(run, conditions, arguments)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(as_markdown(result))
    draw(result, arguments.out.with_suffix(".png"))
    console.print(f"{run.rate:.0f} calls/s for {run.seconds:.0f} s")
    console.print(table_of(conditions))
    console.print(f"{arguments.out}.json, .md, .png")
    return 0 if all(condition.holds for condition in conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
