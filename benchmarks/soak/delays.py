"""How long honest calls take beside the largest JSON over HTTP, and beside hostile connections."""

import asyncio
import json
import shutil
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.contenders import Contender, polyhead
from benchmarks.encoders import BenchEncoder, export_missing, text_request
from benchmarks.generator import background, channel_to, http_calls, http_request, unary, warm_up
from benchmarks.hostile import LARGE, AttackOutcome, attack
from benchmarks.rounds import Condition, console, markdown_table
from benchmarks.soak.findings import Findings
from benchmarks.soak.requests import SoakEncoders
from polyhead_load.sweep.server import free_port, running

_SECONDS, _FEW_SECONDS = 20.0, 1.0
"""Of each measurement, and where encoders are tiny."""
_VALUES = (255, 128)
"""B and T of the largest JSON: with D = 32 just below the 2²⁰ numbers that one may hold."""
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
    body = json_body(encoders.wide, (1, 8) if chosen.tiny else _VALUES)
    with polyhead(chosen.models, http=True) as server, console.status("large JSON"):
        alone, beside, answered = asyncio.run(
            _beside_json(server, encoders, body, _FEW_SECONDS if chosen.tiny else _SECONDS)
        )
    delay = max(beside) - float(np.median(alone))
    megabytes = len(body) / 2**20
    return Findings(
        conditions=[
            Condition(
                name=f"JSON of {megabytes:.0f} MiB delays a lone text by at most {_DELAY_SECONDS} s",
                holds=delay <= _DELAY_SECONDS,
                seen=f"{delay:.3f} s",
            ),
            Condition(name="large JSON is answered", holds=answered > 0, seen=f"{answered} times"),
        ],
        lines=[
            "## The largest JSON over HTTP, beside lone texts over gRPC",
            "",
            *markdown_table(
                {
                    "texts": name,
                    "calls": f"{len(taken):,}",
                    **{
                        f"p{percent} ms": f"{1e3 * np.percentile(taken, percent):.1f}" for percent in (50, 99)
                    },
                    "longest ms": f"{1e3 * max(taken):.1f}",
                }
                for name, taken in (("alone", alone), (f"beside JSON of {megabytes:.0f} MiB", beside))
            ),
        ],
        facts={"json_bytes": len(body), "alone": alone, "beside": beside},
    )


def json_body(encoder: BenchEncoder, shape: tuple[int, int]) -> bytes:
    """Return an inference of vectors [B, T, D] as JSON, whose numbers have all of their digits."""
    x = np.random.default_rng(0).standard_normal((*shape, encoder.config.d_model))
    inputs = [{"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}]
    return json.dumps({"inputs": inputs}).encode()


async def _beside_json(
    server: Contender, encoders: SoakEncoders, body: bytes, seconds: float
) -> tuple[list[float], list[float], int]:
    """Return the seconds of lone texts alone, and beside JSON, and how often that was answered."""
    path = f"/v2/models/{encoders.wide.name}/infer"
    large = http_request(path, body, Content_Type="application/json")
    text = text_request(encoders.texts.name, ["A cat sat on the mat."])
    answered = 0
    async with channel_to(server.address) as channel, http_calls(server.http) as post:
        await warm_up(unary(channel), [text] * 8)

        async def lone(until: float) -> list[float]:
            taken: list[float] = []
            while (start := time.perf_counter()) < until:
                await unary(channel)(text, timeout=60)
                taken.append(time.perf_counter() - start)
                await asyncio.sleep(0.01)
            return taken

        async def send_large() -> None:
            nonlocal answered
            while True:
                await post(large)
                answered += 1

        alone = await lone(time.perf_counter() + seconds)
        async with background(send_large()):
            beside = await lone(time.perf_counter() + seconds)
        return alone, beside, answered


def run_hostile(chosen: Namespace, encoders: SoakEncoders) -> Findings:
    """Attack a server, and one behind the proxy of deploy/proxy, where HAProxy is installed."""
    export_missing([encoders.texts], chosen.models)
    seconds = _FEW_SECONDS if chosen.tiny else _SECONDS
    found: list[tuple[str, int, float, AttackOutcome]] = []
    for name, connections, most in (("alone", 4, _ATTACKED_SECONDS), ("behind HAProxy", 32, _DELAY_SECONDS)):
        if connections == 32 and haproxy() is None:
            continue
        with ExitStack() as stack:
            server = stack.enter_context(polyhead(chosen.models))
            address = server.address if connections == 4 else stack.enter_context(_proxied(server))
            with console.status(f"hostile connections: {name}"):
                outcome = asyncio.run(_attacked(server, address, encoders.texts, connections, seconds))
            found.append((name, connections, most, outcome))
    return Findings(
        conditions=[
            one for name, connections, most, seen in found for one in _judge(name, connections, most, seen)
        ],
        lines=[
            "## Hostile connections, beside a lone text every 50 ms",
            "",
            *markdown_table(
                {
                    "": name,
                    "connections": connections,
                    "hostile calls": f"{seen.hostile_calls:,}",
                    "honest calls": f"{seen.honest_calls:,}",
                    "failed": len(seen.failed),
                    "longest s": f"{seen.longest_seconds:.2f}",
                    "memory grew, MiB": f"{seen.grown_mib:.0f}",
                }
                for name, connections, _, seen in found
            ),
        ],
        facts={"attacks": [seen for *_, seen in found]},
    )


def _judge(name: str, connections: int, most: float, seen: AttackOutcome) -> Iterator[Condition]:
    what = f"{connections} hostile connections, {name}"
    yield Condition(
        name=f"{what}: honest calls succeed", holds=not seen.failed, seen=f"{len(seen.failed)} failed"
    )
    yield Condition(
        name=f"{what}: the longest honest call ≤ {most} s",
        holds=seen.longest_seconds <= most,
        seen=f"{seen.longest_seconds:.2f} s",
    )
    yield Condition(
        name=f"{what}: memory grows by at most {_GROWTH_MIB[connections]:g} MiB",
        holds=seen.grown_mib <= _GROWTH_MIB[connections],
        seen=f"{seen.grown_mib:.0f} MiB",
    )


async def _attacked(
    server: Contender, address: str, encoder: BenchEncoder, connections: int, seconds: float
) -> AttackOutcome:
    text = text_request(encoder.name, ["A cat sat on the mat."])
    async with channel_to(address) as channel:
        await warm_up(unary(channel), [text] * 8)
        return await attack(
            address,
            lambda: unary(channel)(text, timeout=30),
            server.process,
            connections=connections,
            bomb=LARGE,
            seconds=seconds,
        )


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
