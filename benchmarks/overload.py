"""`make overload`: thousands of callers, a queue of 64 requests. No call may be lost, and memory is flat.

Five crowds, one after the other: bursts of 1,000 calls at once, 1,000 callers who retry when the server
says, 1,000 who retry at once, and bursts of 4,000 and of 8,000. With so many in flight all the time, a
refusal cannot be quicker than their number divided by the refusals a second that the machine can send; so a
witness calls beside them, one call at a time, from a process that is not busy with thousands of others.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from callers import SCRIPT
from conditions import Condition, rows_of, table_of
from encoders import export_missing
from load import HEALTH, channel_to, unary, warm_up
from payloads import TEXTS, token_ids
from polyhead_load.sweep.fingerprint import fingerprint
from polyhead_proto.names import PUSHBACK
from servers import Served, made_with, polyhead_server
from soak import count
from watch import Watch

QUEUE = 64
CROWDS = (("burst", 1000), ("patient", 1000), ("hammering", 1000), ("burst", 4000), ("burst", 8000))
"""The kind and the number of callers of each."""
_TARGET_MS = 50.0
_GROWTH_MIB = 32.0
_CALL_KIB = 32.0
"""What a call may take that waits to be looked at."""
_WITNESS_PAUSE_SECONDS = 0.02

console = Console()


class Witness:
    """Calls beside a crowd, one call at a time.

    Args:
        address: The server's.
        request: What the crowd sends, too.
    """

    def __init__(self, address: str, request: bytes) -> None:
        self.counts: Counter[str] = Counter()
        self.ms: dict[str, list[float]] = {}
        self.without_pushback = 0
        self._address = address
        self._request = request

    async def run(self, stop: asyncio.Event) -> None:
        """Call until `stop` is set."""
        async with channel_to(self._address) as channel:
            while not stop.is_set():
                await self._call(unary(channel, HEALTH)(b""), "health")
                code, call = await self._call(unary(channel)(self._request), None)
                self.counts[code] += 1
                if code != "OK" and PUSHBACK not in dict(await call.trailing_metadata()):
                    self.without_pushback += 1
                await asyncio.sleep(_WITNESS_PAUSE_SECONDS)

    async def _call(self, call: Any, name: str | None) -> tuple[str, Any]:
        start = time.perf_counter()
        code = (await call.code()).name
        self.ms.setdefault(name or code, []).append(1e3 * (time.perf_counter() - start))
        return code, call


def percentiles(ms: Sequence[float]) -> dict[str, float]:
    """Return the percentiles that are reported."""
    return {f"p{percent}_ms": float(np.percentile(ms, percent)) for percent in (50, 99)} if ms else {}


async def crowd(served: Served, request: bytes, kind: str, callers: int, seconds: float) -> dict[str, Any]:
    """Run one crowd with a witness beside it; return what they saw and what the server counted."""
    witness = Witness(served.address, request)
    watch = Watch(served, lambda: (0, 0, 0))
    before = await count(served)
    stop = asyncio.Event()
    witnessing, watching = asyncio.create_task(witness.run(stop)), asyncio.create_task(watch.run())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SCRIPT, "--address", served.address, "--kind", kind),
        *("--callers", str(callers), "--seconds", str(seconds)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    said, _ = await process.communicate(request)
    stop.set()
    await witnessing
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    seen = json.loads(said)
    last = await watch.look()
    after = await count(served)
    drops = after.metrics.by("polyhead_drops_total", "reason") - before.metrics.by(
        "polyhead_drops_total", "reason"
    )
    counted = after.statistics[TEXTS.name].since(before.statistics[TEXTS.name])
    return {
        "kind": kind,
        "callers": callers,
        "seconds": seen["seconds"],
        "crowd_cores": seen["cores"],
        "answers": dict(Counter(seen["counts"]) + witness.counts),
        "without_pushback": seen["without_pushback"] + witness.without_pushback,
        "crowd": {code: percentiles(ms) for code, ms in seen["ms"].items()},
        "witness": {code: percentiles(ms) for code, ms in witness.ms.items()},
        "counted": {"success": counted.succeeded, "fail": counted.failed},
        "drops": {reason: number for (reason,), number in drops.items()},
        "left_in_flight": last.in_flight,
        "rss_mib": [sample.rss_mib for sample in watch.samples],
    }


def name_of(phase: Mapping[str, Any]) -> str:
    """Return the name of a crowd."""
    return f"{phase['kind']} of {phase['callers']:,}"


def judge(phases: Sequence[Mapping[str, Any]]) -> list[Condition]:
    """Return every condition of an overload."""
    answers = [Counter(phase["answers"]) for phase in phases]
    strange = sum(
        (each - Counter(OK=each["OK"], UNAVAILABLE=each["UNAVAILABLE"]) for each in answers), Counter()
    )
    counted = [(phase["counted"]["success"], phase["counted"]["fail"]) for phase in phases]
    ours = [(each["OK"], each["UNAVAILABLE"]) for each in answers]
    medians = {
        name_of(phase): (
            phase["crowd"]["UNAVAILABLE"]["p50_ms"],
            phase["witness"].get("UNAVAILABLE", {}).get("p50_ms", float("nan")),
        )
        for phase in phases
    }
    (patient,) = (name_of(phase) for phase in phases if phase["kind"] == "patient")
    peaks = [max(phase["rss_mib"]) for phase in phases]
    most = [
        peaks[0] + _GROWTH_MIB + (phase["callers"] - phases[0]["callers"]) * _CALL_KIB / 1024
        for phase in phases
    ]
    return [
        Condition(
            name="every call was answered, with OK or UNAVAILABLE",
            holds=not strange and all(each["OK"] and each["UNAVAILABLE"] for each in answers),
            seen=", ".join(f"{code} {number:,}" for code, number in sum(answers, Counter()).items()),
        ),
        Condition(
            name=f"every refusal says when to retry ({PUSHBACK})",
            holds=not any(phase["without_pushback"] for phase in phases),
            seen=f"{sum(phase['without_pushback'] for phase in phases)} did not",
        ),
        Condition(
            name="no accepted request was lost: the server counts the same",
            holds=counted == ours and not any(phase["left_in_flight"] for phase in phases),
            seen="; ".join(f"{one} (ours {other})" for one, other in zip(counted, ours, strict=True)),
        ),
        Condition(
            name=f"refused within {_TARGET_MS:g} ms at the median, where callers retry when the server says",
            holds=medians[patient][0] <= _TARGET_MS,
            seen="; ".join(
                f"{kind}: {crowd:.1f} ms, beside it {witness:.1f} ms"
                for kind, (crowd, witness) in medians.items()
            ),
        ),
        Condition(
            name=f"memory is flat: peaks differ by less than {_GROWTH_MIB:g} MiB, "
            f"and {_CALL_KIB:g} KiB for each further caller",
            holds=all(peak < limit for peak, limit in zip(peaks, most, strict=True)),
            seen=", ".join(
                f"{name_of(phase)} {peak:.0f} MiB" for phase, peak in zip(phases, peaks, strict=True)
            ),
        ),
    ]


def as_markdown(result: Mapping[str, Any]) -> str:
    """Return the result as a page in Markdown."""
    lines = [
        "# Overload",
        "",
        f"{made_with(result['fingerprint'])}: {result['encoder']}, "
        f"T = {result['tokens']}, a queue of {QUEUE} requests.",
        "",
        *rows_of(result["conditions"]),
    ]
    lines += [
        "",
        "| crowd | OK/s | refused/s | refused p50, p99 ms | beside it: refused | health |",
        "|---|---|---|---|---|---|",
    ]
    for phase in result["phases"]:
        answers, crowd, witness = phase["answers"], phase["crowd"], phase["witness"]
        cells = [
            name_of(phase),
            *(f"{answers.get(code, 0) / phase['seconds']:,.0f}" for code in ("OK", "UNAVAILABLE")),
        ]
        for seen in (crowd.get("UNAVAILABLE"), witness.get("UNAVAILABLE"), witness.get("health")):
            cells.append(f"{seen['p50_ms']:.1f}, {seen['p99_ms']:.1f}" if seen else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


async def run(served: Served, seconds: float) -> list[dict[str, Any]]:
    """Run all crowds, one after the other."""
    request = token_ids(TEXTS)
    async with channel_to(served.address) as channel:
        await warm_up(unary(channel), [request] * 8)
    phases = []
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(CROWDS))
        for kind, callers in CROWDS:
            progress.update(task, description=f"{kind} of {callers:,}")
            phases.append(await crowd(served, request, kind, callers, seconds))
            progress.advance(task)
    return phases


def main() -> int:
    """Overload a server, report, and return 0 where everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each crowd")
    parser.add_argument("--models", type=Path, default=Path("build/overload-models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/overload"), help="without a suffix")
    arguments, serve_arguments = parser.parse_known_args()
    export_missing([TEXTS], arguments.models)
    queue = ["--max-queued-tokens", str(QUEUE * TEXTS.tokens)]
    with polyhead_server(arguments.models, [*queue, *serve_arguments]) as served:
        phases = asyncio.run(run(served, arguments.seconds))
    conditions = judge(phases)
    result = {
        "fingerprint": fingerprint(sys.argv),
        "encoder": TEXTS.name,
        "tokens": TEXTS.tokens,
        "conditions": [asdict(condition) for condition in conditions],
        "phases": phases,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    page = as_markdown(result)
    arguments.out.with_suffix(".md").write_text(page)
    console.print(table_of(conditions))
    console.print(f"{arguments.out}.json, .md")
    return 0 if all(condition.holds for condition in conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
