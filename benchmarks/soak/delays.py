"""How long honest calls take beside the largest JSON over HTTP, and beside hostile connections."""

import asyncio
import http.client
import json
import shutil
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Contender, polyhead
from benchmarks.encoders import BenchEncoder, export_missing, text_request
from benchmarks.generator import channel_to, unary, warm_up
from benchmarks.hostile import LARGE, MANY, AttackOutcome, attack
from benchmarks.rounds import Condition, console, markdown_table
from benchmarks.soak.findings import Findings
from benchmarks.soak.requests import SoakEncoders
from polyhead_load.sweep.server import free_port, running

_SECONDS, _FEW_SECONDS = 20.0, 1.0
"""Of each measurement, and where encoders are tiny."""
_VALUES = (255, 128)
"""The most sequences of the largest JSON, and T: with D = 32 just below the 2²⁰ numbers that one may hold."""
_JSON_BYTES = 16 * 2**20
"""The most bytes of a JSON document."""
_HALFWAY = "9007199254740993.00000000000"
"""A number that is hard to read."""
_DELAY_SECONDS = 0.2
"""The most that large JSON, or an attack that a proxy takes, may delay a lone text."""
_ATTACKED_SECONDS = 2.0
"""The longest honest call beside four hostile connections without a proxy."""
_GROWTH_MIB = {4: 400.0, 32: 50.0}
"""By how much memory may grow: with four connections without, and with 32 behind a proxy."""
_PROXY = Path(__file__).parents[2] / "deploy" / "proxy" / "haproxy.cfg"


def run_json(chosen: Namespace, encoders: SoakEncoders) -> Findings:
    """Call with lone texts over gRPC, alone and beside the largest JSON, one request after the other."""
    export_missing([encoders.texts, encoders.wide], chosen.models)
    seconds = _FEW_SECONDS if chosen.tiny else _SECONDS
    bodies = {"nothing": b"", **json_bodies(encoders.wide, (1, 8) if chosen.tiny else _VALUES)}
    taken: dict[str, list[float]] = {}
    conditions: list[Condition] = []
    with polyhead(chosen.models, http=True) as server:
        for what, body in bodies.items():
            with console.status(f"JSON: {what}"):
                taken[what], answered = asyncio.run(_beside_json(server, encoders, body, seconds))
            if body:
                delay = max(taken[what]) - float(np.median(taken["nothing"]))
                conditions.append(
                    Condition(
                        name=f"JSON of {len(body) / 2**20:.0f} MiB, {what}, is answered, "
                        f"and delays a lone text by at most {_DELAY_SECONDS} s",
                        holds=answered > 0 and delay <= _DELAY_SECONDS,
                        seen=f"{answered} times, {delay:.3f} s",
                    )
                )
    return Findings(
        conditions=conditions,
        lines=[
            "## The largest JSON over HTTP, beside lone texts over gRPC",
            "",
            *markdown_table(
                {
                    "texts beside": what,
                    "calls": f"{len(each):,}",
                    **{f"p{percent} ms": f"{1e3 * np.percentile(each, percent):.1f}" for percent in (50, 99)},
                    "longest ms": f"{1e3 * max(each):.1f}",
                }
                for what, each in taken.items()
            ),
        ],
        facts={"beside_json": taken},
    )


def json_bodies(encoder: BenchEncoder, shape: tuple[int, int]) -> dict[str, bytes]:
    """Return what takes the longest to read: inferences of vectors [B, T, D], and one string."""
    most, tokens = shape
    x = np.random.default_rng(0).standard_normal((most, tokens, encoder.config.d_model))
    numbers = x.ravel().tolist()
    elements = {
        "numbers of 26 digits": [f"{value:.26f}" for value in numbers],
        "numbers of 8 digits": [f"{value:.8f}" for value in numbers],
        "numbers halfway between two doubles": [_HALFWAY] * x.size,
        "short strings of escapes": [json.dumps("é" * 4)] * x.size,
    }
    bodies = {}
    for what, each in elements.items():
        batch = min(most, _JSON_BYTES // (max(map(len, each)) + 1) // x[0].size)
        head = json.dumps({"name": "x", "datatype": "FP32", "shape": (batch, *x.shape[1:])})
        data = ",".join(each[: batch * x[0].size])
        bodies[what] = f'{{"inputs": [{head[:-1]}, "data": [{data}]}}]}}'.encode()
    quotes = rb",\"" * (min(len(bodies["numbers of 26 digits"]), _JSON_BYTES - 4) // 3)
    return bodies | {"a string of commas and quotes": b'["%b"]' % quotes}


async def _beside_json(
    server: Contender, encoders: SoakEncoders, body: bytes, seconds: float
) -> tuple[list[float], int]:
    """Return the seconds of lone texts beside JSON, if there is any, and how often that was answered."""
    path = f"/v2/models/{encoders.wide.name}/infer"
    text = text_request(encoders.texts.name, ["A cat sat on the mat."])
    ended = threading.Event()

    def send_large() -> int:
        """Run in a thread, so that what is large does not keep this event loop busy."""
        answered, connection = 0, http.client.HTTPConnection(server.http, timeout=60)
        while body and not ended.is_set():
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            answered += reply.status == (400 if b"\\u" in body or b"FP32" not in body else 200)  # no numbers
        connection.close()
        return answered

    async with channel_to(server.address) as channel:
        await warm_up(unary(channel), [text] * 8)
        sending = asyncio.create_task(asyncio.to_thread(send_large))
        taken: list[float] = []
        until = time.perf_counter() + seconds
        while (start := time.perf_counter()) < until:
            await unary(channel)(text, timeout=60)
            taken.append(time.perf_counter() - start)
            await asyncio.sleep(0.01)
        ended.set()
        return taken, await sending


def run_hostile(chosen: Namespace, encoders: SoakEncoders) -> Findings:
    """Attack a server, and one behind the proxy of deploy/proxy, where HAProxy is installed."""
    export_missing([encoders.texts], chosen.models)
    seconds = _FEW_SECONDS if chosen.tiny else _SECONDS
    ways = {"alone": (4, _ATTACKED_SECONDS), "behind HAProxy": (32, _DELAY_SECONDS)}
    if haproxy() is None:
        del ways["behind HAProxy"]
    conditions: list[Condition] = []
    rows: list[dict[str, str]] = []
    attacks: list[AttackOutcome] = []
    for bomb, (way, (connections, most)) in product((LARGE, MANY), ways.items()):
        with ExitStack() as stack:
            server = stack.enter_context(polyhead(chosen.models))
            address = server.address if way == "alone" else stack.enter_context(_proxied(server))
            with console.status(f"hostile connections, {way}: {bomb}"):
                options = {"connections": connections, "bomb": bomb, "seconds": seconds}
                seen = asyncio.run(_attacked(server, address, encoders.texts, **options))
        what = f"{connections} hostile connections, {way}, {bomb}"
        conditions += _judge(what, _GROWTH_MIB[connections], most, seen)
        rows.append(
            {
                "each call": str(bomb),
                "server": way,
                "connections": str(connections),
                "hostile calls": f"{seen.hostile_calls:,}",
                "honest calls": f"{seen.honest_calls:,}",
                "failed": str(len(seen.failed)),
                "longest s": f"{seen.longest_seconds:.2f}",
                "memory grew, MiB": f"{seen.grown_mib:.0f}",
            }
        )
        attacks.append(seen)
    return Findings(
        conditions=conditions,
        lines=["## Hostile connections, beside a lone text every 50 ms", "", *markdown_table(rows)],
        facts={"attacks": attacks},
    )


def _judge(what: str, most_mib: float, most_seconds: float, seen: AttackOutcome) -> Iterator[Condition]:
    yield Condition(
        name=f"{what}: honest calls succeed", holds=not seen.failed, seen=f"{len(seen.failed)} failed"
    )
    yield Condition(
        name=f"{what}: the longest honest call ≤ {most_seconds} s",
        holds=seen.longest_seconds <= most_seconds,
        seen=f"{seen.longest_seconds:.2f} s",
    )
    yield Condition(
        name=f"{what}: memory grows by at most {most_mib:g} MiB",
        holds=seen.grown_mib <= most_mib,
        seen=f"{seen.grown_mib:.0f} MiB",
    )


async def _attacked(server: Contender, address: str, encoder: BenchEncoder, **options: Any) -> AttackOutcome:
    text = text_request(encoder.name, ["A cat sat on the mat."])
    async with channel_to(address) as channel:
        await warm_up(unary(channel), [text] * 8)
        return await attack(address, lambda: unary(channel)(text, timeout=30), server.process, **options)


def haproxy() -> str | None:
    """Return where HAProxy is, if it is installed."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def _proxied(server: Contender) -> Iterator[str]:
    """Run HAProxy in front of a server; yield its address."""
    port = free_port()
    settings = {
        "GRPC_BIND": f"127.0.0.1:{port}",
        "GRPC_SERVER": server.address,
        "HTTP_BIND": f"127.0.0.1:{free_port()}",
        "HTTP_SERVER": server.http,
        "TLS": "",
    }
    command: Sequence[str] = [haproxy() or "", "-W", "-db", "-f", str(_PROXY)]
    environment = {f"POLYHEAD_PROXY_{name}": value for name, value in settings.items()}
    with running(command, environment=environment):
        yield f"127.0.0.1:{port}"
