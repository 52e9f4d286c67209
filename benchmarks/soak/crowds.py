"""Bursts of up to 8,000 callers in front of a queue of 64 requests: no call is lost, and memory is flat."""

import asyncio
import json
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.contenders import Contender, polyhead
from benchmarks.encoders import export_missing, infer_request
from benchmarks.generator import background, channel_to, unary, warm_up
from benchmarks.rounds import Condition, console, markdown_table
from benchmarks.soak.callers import command
from benchmarks.soak.counters import ServerMonitor
from benchmarks.soak.findings import Findings
from benchmarks.soak.requests import SoakEncoders
from polyhead_proto.names import PUSHBACK

_QUEUE = 64
_CALLERS, _FEW_CALLERS = (1000, 4000, 8000), (100, 200)
"""Of each burst, and where encoders are tiny."""
_SECONDS, _FEW_SECONDS = 15.0, 1.0
_GROWTH_MIB = 32.0
_CALL_KIB = 32.0
"""Memory that a call may take until it is accepted or rejected."""


def run(chosen: Namespace, encoders: SoakEncoders) -> Findings:
    """Serve an encoder whose requests are small and take long, and let crowds come."""
    encoder = encoders.crowded
    export_missing([encoder], chosen.models)
    ids = np.random.default_rng(0).integers(0, 1000, (1, encoder.tokens))
    request = infer_request(encoder.name, {"input_ids": ids.astype(np.int64)}, ["pooled"])
    callers, seconds = (_FEW_CALLERS, _FEW_SECONDS) if chosen.tiny else (_CALLERS, _SECONDS)
    queue = ["--max-queued-tokens", str(_QUEUE * encoder.tokens)]
    with polyhead(chosen.models, queue) as server, console.status("crowds"):
        crowds = [asyncio.run(_crowd(server, encoder.name, request, each, seconds)) for each in callers]
    return Findings(
        conditions=judge(crowds),
        lines=[
            f"## Crowds in front of a queue of {_QUEUE} requests, {encoder}, T = {encoder.tokens}",
            "",
            *markdown_table(
                {
                    "callers at once": f"{crowd['callers']:,}",
                    "OK": f"{crowd['answers'].get('OK', 0):,}",
                    "rejected": f"{crowd['answers'].get('UNAVAILABLE', 0):,}",
                    "rejected, p50, p99 ms": _spell(crowd["rejected_ms"]),
                }
                for crowd in crowds
            ),
        ],
        facts={"crowds": [{**crowd, "rejected_ms": []} for crowd in crowds]},
    )


async def _crowd(server: Contender, model: str, request: bytes, callers: int, seconds: float) -> Any:
    """Let one crowd come; return its results and the server's."""
    monitor = ServerMonitor(server)
    async with channel_to(server.address) as channel:
        await warm_up(unary(channel), [request] * 8)
        before = await monitor.counters()
        async with background(monitor.run()):
            process = await asyncio.create_subprocess_exec(
                *command(server.address, "burst", callers, seconds),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            printed, _ = await process.communicate(request)
    left = await monitor.settled(60)
    after = await monitor.counters()
    return {
        "callers": callers,
        **json.loads(printed),
        "counted": after.statistics[model].since(before.statistics[model])[:2],
        "left_in_flight": left.in_flight,
        "peak_mib": max(sample.rss_mib for sample in monitor.samples),
    }


def _spell(ms: Sequence[float]) -> str:
    return ", ".join(f"{np.percentile(ms, percent):.1f}" for percent in (50, 99)) if ms else "–"


def judge(crowds: Sequence[Mapping[str, Any]]) -> list[Condition]:
    """Return whether each call was answered and counted once, and memory stayed."""
    answers = [Counter(crowd["answers"]) for crowd in crowds]
    total = sum(answers, Counter())
    counted = [tuple(crowd["counted"]) for crowd in crowds]
    ours = [(each["OK"], each["UNAVAILABLE"]) for each in answers]
    least = crowds[0]
    return [
        Condition(
            name="crowds: every call was answered, with OK or UNAVAILABLE",
            holds=all("OK" in each and set(each) <= {"OK", "UNAVAILABLE"} for each in answers),
            seen=", ".join(f"{code} {number:,}" for code, number in total.items()),
        ),
        Condition(
            name="crowds: the queue was full",
            holds=all(each["UNAVAILABLE"] for each in answers),
            seen=f"{total['UNAVAILABLE']:,} rejected",
        ),
        Condition(
            name=f"crowds: every rejection says when to retry ({PUSHBACK})",
            holds=not any(crowd["without_pushback"] for crowd in crowds),
            seen=f"{sum(crowd['without_pushback'] for crowd in crowds)} did not",
        ),
        Condition(
            name="crowds: no accepted request was lost: the server counts the same",
            holds=counted == ours and not any(crowd["left_in_flight"] for crowd in crowds),
            seen="; ".join(f"{one} (ours {other})" for one, other in zip(counted, ours, strict=True)),
        ),
        Condition(
            name=f"crowds: memory is flat: peaks differ by less than {_GROWTH_MIB:g} MiB, "
            f"and {_CALL_KIB:g} KiB for each further caller",
            holds=all(
                crowd["peak_mib"] - least["peak_mib"]
                < _GROWTH_MIB + (crowd["callers"] - least["callers"]) * _CALL_KIB / 1024
                for crowd in crowds
            ),
            seen=", ".join(f"{crowd['callers']:,}: {crowd['peak_mib']:.0f} MiB" for crowd in crowds),
        ),
    ]
