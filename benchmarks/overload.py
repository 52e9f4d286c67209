"""`make overload`: thousands of callers, a queue of 64 requests. No call may be lost, and memory is flat.

Five crowds, one after the other: bursts of 1,000 calls at once, 1,000 callers that retry when the server
says, 1,000 that retry at once, and bursts of 4,000 and of 8,000. With so many calls in flight, a rejection
cannot be faster than their number divided by the rejections per second that the machine can send. So a
witness calls beside them, one call at a time, from a process that is not busy with thousands of others.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.callers import Callers, command
from benchmarks.encoders import BenchEncoder, export_missing, infer_request
from benchmarks.frame import Condition, console, finish, markdown_table, options
from benchmarks.load_generator import background, channel_to, unary, warm_up
from benchmarks.monitor import ServerMonitor
from benchmarks.servers import ServerProcess, serve
from polyhead_model import EncoderConfig
from polyhead_proto.names import PUSHBACK

_ENCODER = BenchEncoder(
    name="soak-tokens",
    config=EncoderConfig(
        d_model=384, heads=12, layers=6, feed_forward=1536, vocabulary=1000, positions=512, pooling="mean"
    ),
    tokens=128,
)
"""Its requests are small and take long to compute, like those of a sentence encoder."""

_QUEUE = 64
_CROWDS = (("burst", 1000), ("patient", 1000), ("hammering", 1000), ("burst", 4000), ("burst", 8000))
"""Kind and number of callers."""
_TARGET_MS = 50.0
_GROWTH_MIB = 32.0
_CALL_KIB = 32.0
"""Memory that a call may take until it is accepted or rejected."""
_WITNESS_PAUSE_SECONDS = 0.02


async def _crowd(server: ServerProcess, request: bytes, kind: str, callers: int, seconds: float) -> Any:
    """Run one crowd with a witness beside it; return their results and the server's, as JSON values."""
    witness = Callers(server.address, request)
    monitor = ServerMonitor(server)
    before = await asyncio.to_thread(server.counters)
    stop = asyncio.Event()

    async def watch() -> None:
        while not stop.is_set():
            await witness.check_health()
            await witness.call()
            await asyncio.sleep(_WITNESS_PAUSE_SECONDS)

    async with background(monitor.run()), asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        process = await asyncio.create_subprocess_exec(
            *command(server.address, kind, callers, seconds), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        printed, _ = await process.communicate(request)
        stop.set()
    await witness.close()
    crowd = json.loads(printed)
    last = await monitor.sample()
    after = await asyncio.to_thread(server.counters)
    counted = after.statistics[_ENCODER.name].since(before.statistics[_ENCODER.name])
    return {
        "kind": kind,
        "callers": callers,
        "seconds": crowd["seconds"],
        "answers": dict(Counter(crowd["counts"]) + witness.counts),
        "without_pushback": crowd["without_pushback"] + witness.without_pushback,
        "crowd": _percentiles(crowd["ms"]),
        "witness": _percentiles(witness.ms),
        "counted": {"success": counted.succeeded, "fail": counted.failed},
        "left_in_flight": last.in_flight,
        "rss_mib": [sample.rss_mib for sample in monitor.samples],
    }


def _percentiles(ms: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {f"p{percent}_ms": float(np.percentile(each, percent)) for percent in (50, 99)}
        for name, each in ms.items()
    }


def _name(crowd: Mapping[str, Any]) -> str:
    return f"{crowd['kind']} of {crowd['callers']:,}"


def _judge(crowds: Sequence[Mapping[str, Any]]) -> list[Condition]:
    answers = [Counter(crowd["answers"]) for crowd in crowds]
    total = sum(answers, Counter())
    counted = [(crowd["counted"]["success"], crowd["counted"]["fail"]) for crowd in crowds]
    ours = [(each["OK"], each["UNAVAILABLE"]) for each in answers]
    medians = {
        _name(crowd): [
            crowd[who].get("UNAVAILABLE", {}).get("p50_ms", float("nan")) for who in ("crowd", "witness")
        ]
        for crowd in crowds
    }
    (patient,) = (_name(crowd) for crowd in crowds if crowd["kind"] == "patient")
    peaks = {_name(crowd): max(crowd["rss_mib"]) for crowd in crowds}
    smallest = crowds[0]
    return [
        Condition(
            name="every call was answered, with OK or UNAVAILABLE",
            holds=set(total) == {"OK", "UNAVAILABLE"}
            and all(each["OK"] and each["UNAVAILABLE"] for each in answers),
            seen=", ".join(f"{code} {number:,}" for code, number in total.items()),
        ),
        Condition(
            name=f"every rejection says when to retry ({PUSHBACK})",
            holds=not any(crowd["without_pushback"] for crowd in crowds),
            seen=f"{sum(crowd['without_pushback'] for crowd in crowds)} did not",
        ),
        Condition(
            name="no accepted request was lost: the server counts the same",
            holds=counted == ours and not any(crowd["left_in_flight"] for crowd in crowds),
            seen="; ".join(f"{one} (ours {other})" for one, other in zip(counted, ours, strict=True)),
        ),
        Condition(
            name=f"rejected within {_TARGET_MS:g} ms at the median, where callers retry when the server says",
            holds=medians[patient][0] <= _TARGET_MS,
            seen="; ".join(
                f"{name}: {crowd:.1f} ms, beside it {witness:.1f} ms"
                for name, (crowd, witness) in medians.items()
            ),
        ),
        Condition(
            name=f"memory is flat: peaks differ by less than {_GROWTH_MIB:g} MiB, "
            f"and {_CALL_KIB:g} KiB for each further caller",
            holds=all(
                peaks[_name(crowd)] - peaks[_name(smallest)]
                < _GROWTH_MIB + (crowd["callers"] - smallest["callers"]) * _CALL_KIB / 1024
                for crowd in crowds
            ),
            seen=", ".join(f"{name} {peak:.0f} MiB" for name, peak in peaks.items()),
        ),
    ]


def _row(crowd: Mapping[str, Any]) -> dict[str, str]:
    def rate(code: str) -> str:
        return f"{crowd['answers'].get(code, 0) / crowd['seconds']:,.0f}"

    def milliseconds(who: str, name: str) -> str:
        seen = crowd[who].get(name)
        return f"{seen['p50_ms']:.1f}, {seen['p99_ms']:.1f}" if seen else "–"

    return {
        "crowd": _name(crowd),
        "OK/s": rate("OK"),
        "rejected/s": rate("UNAVAILABLE"),
        "rejected p50, p99 ms": milliseconds("crowd", "UNAVAILABLE"),
        "beside it: rejected": milliseconds("witness", "UNAVAILABLE"),
        "health": milliseconds("witness", "health"),
    }


async def _run(server: ServerProcess, seconds: float) -> list[dict[str, Any]]:
    """Run all crowds, one after the other."""
    ids = np.random.default_rng(0).integers(0, _ENCODER.config.vocabulary or 1, (1, _ENCODER.tokens))
    request = infer_request(_ENCODER.name, {"input_ids": ids.astype(np.int64)}, {"pooled": None})
    async with channel_to(server.address) as channel:
        await warm_up(unary(channel), [request] * 8)
    crowds = []
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(_CROWDS))
        for number, (kind, callers) in enumerate(_CROWDS):
            progress.update(task, description=f"{kind} of {callers:,}", completed=number)
            crowds.append(await _crowd(server, request, kind, callers, seconds))
    return crowds


def main() -> int:
    """Overload a server, report, and return 0 if every condition holds."""
    arguments = options(__doc__, "overload", seconds=15.0).parse_args()
    export_missing([_ENCODER], arguments.models)
    queue = ["--max-queued-tokens", str(_QUEUE * _ENCODER.tokens)]
    with serve(arguments.models, queue) as server:
        crowds = asyncio.run(_run(server, arguments.seconds))
    return finish(
        arguments,
        "make overload",
        "Overload",
        markdown_table(_row(crowd) for crowd in crowds),
        conditions=_judge(crowds),
        intro=[f"{_ENCODER.name}, T = {_ENCODER.tokens}, a queue of {_QUEUE} requests."],
        facts={"encoder": _ENCODER.name, "tokens": _ENCODER.tokens, "phases": crowds},
    )


if __name__ == "__main__":
    sys.exit(main())
