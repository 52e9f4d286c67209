"""`make scaling`: what it costs to serve with more than one server, beside a plain one on the same machine.

One encoder, bench-384, behind a plain server, over streams, behind two workers, two servers that take
turns, and Ray Serve, under the same load, in turn. With more processors all but the first would be faster;
what is measured is the cost of what lies between a client and the encoder.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.encoders import ENCODERS, describe, export_missing, request_bytes
from benchmarks.frame import (
    Condition,
    Rounds,
    Sample,
    at_most,
    compare,
    console,
    finish,
    in_rounds,
    markdown_table,
    options,
    spell_number,
)
from benchmarks.load_generator import LoadResult, Send, closed_loop, stream_loop
from polyhead_client import Client
from polyhead_load.sweep.server import started_server

_ENCODER = ENCODERS[1]
_NO_HTTP = ("--http-port", "off")
IN_FLIGHT = (1, 8, 32)
PLAIN = "one server"
RAY = "Ray Serve, one replica, HAProxy"
_HAPROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "1"}
"""The faster of Ray's two ways in."""
_CLIENT, _PROXY, _INGRESS, _SERVER, _REST = "client", "proxy", "ingress", "server or replica", "rest of Ray"
_PARTS = {
    "ingress": _INGRESS,
    "servereplica:": _SERVER,
    "proxy": _PROXY,
}
"""What a process of Ray is called while it is at work or not; the first that fits counts."""
_CONNECTIONS = 8
"""Clients of the workers: the system gives each connection to one worker."""
_STREAMS = {1: 1, 8: 1, 32: 4}
_LATENCY = 2.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Servers that are running."""

    name: str
    target: str
    addresses: Sequence[str]
    """Where to ask for statistics."""
    roots: Sequence[psutil.Process]
    """They and their children are what serves."""
    send: Send = closed_loop

    def processes(self) -> list[psutil.Process]:
        """Return everything that runs."""
        return [*self.roots, *(child for root in self.roots for child in root.children(recursive=True))]

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time used so far, by part."""
        other = _REST if self.name == RAY else _SERVER
        total: dict[str, float] = {}
        for process in self.processes():
            with suppress(psutil.Error, IndexError):  # it has ended
                times, name = process.cpu_times(), Path(process.cmdline()[0]).name.lower()
                part = next((part for word, part in _PARTS.items() if word in name), other)
                total[part] = total.get(part, 0.0) + times.user + times.system
        return total

    def memory_mib(self) -> float:
        """Return the memory that nothing else has, of all processes."""
        total = 0
        for process in self.processes():
            with suppress(psutil.Error):
                total += process.memory_full_info().uss
        return total / 2**20

    def runs(self) -> tuple[int, int]:
        """Return the sequences and the runs so far."""
        sequences = runs = 0
        for address in self.addresses:
            with Client(address, timeout=30) as client:
                for model in client.statistics(_ENCODER.name):
                    sequences += model.inference_count
                    runs += model.execution_count
        return sequences, runs

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop everything for a while: Ray is busy even when nothing is asked of it."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.Error):
                    process.resume()


@dataclass(frozen=True, kw_only=True)
class ScalingSample(Sample):
    """One load of one setup."""

    cpu_ms: Mapping[str, float]
    """CPU time of a request, by part; the client's, too."""


def measure(setup: Setup, in_flight: int, seconds: float, requests: Sequence[bytes]) -> ScalingSample:
    """Load a setup."""
    before = setup.runs()
    used: list[dict[str, float]] = []

    def server() -> float:
        used.append(setup.cpu_seconds())
        return sum(used[-1].values())

    load = asyncio.run(
        setup.send(setup.target, requests, in_flight=in_flight, seconds=seconds, server=server)
    )
    sequences, runs = (now - earlier for now, earlier in zip(setup.runs(), before, strict=True))
    answers = max(1, len(load.latencies_ms))
    parts = {part: now - used[0].get(part, 0.0) for part, now in used[-1].items()}
    taken = {_CLIENT: load.client_cores * load.seconds, **parts}
    return ScalingSample(
        **vars(Sample.of_load(load, batch=sequences / max(runs, 1))),
        cpu_ms={part: 1e3 * used_seconds / answers for part, used_seconds in taken.items()},
    )


def measure_all(
    setups: Sequence[Setup], *, rounds: int, seconds: float, apart: bool
) -> dict[int, dict[str, list[ScalingSample]]]:
    """Load setups in turn, and return their samples by requests in flight.

    Args:
        setups: All of them.
        rounds: Samples of each.
        seconds: Length of a sample.
        apart: Stop the last while the others are measured.
    """
    requests = request_bytes(_ENCODER, [_ENCODER.tokens] * 64)
    for setup in setups:  # costs are learned, connections opened
        measure(setup, IN_FLIGHT[-1], seconds, requests)

    def load(setup: Setup, in_flight: int) -> ScalingSample:
        with setups[-1].suspended() if apart and setup is not setups[-1] else nullcontext():
            return measure(setup, in_flight, seconds, requests)

    return {
        in_flight: compare(
            f"{setups[-1].name}, {in_flight} in flight",
            {setup.name: partial(load, setup, in_flight) for setup in setups},
            rounds,
        )
        for in_flight in IN_FLIGHT
    }


@contextmanager
def served(
    name: str,
    models: Path,
    *flags: str,
    servers: int = 1,
    log: Path | None = None,
    send: Send = closed_loop,
) -> Iterator[Setup]:
    """Start servers; several take turns."""
    flags = ("--log-level", "error", *flags)
    with ExitStack() as stack:
        started = [
            stack.enter_context(started_server(models, flags, log=log, environment=_HAPROXY))
            for _ in range(servers)
        ]
        addresses = [server.address for server in started]
        yield Setup(
            name=name,
            target=addresses[0] if servers == 1 else f"ipv4:{','.join(addresses)}",
            addresses=addresses,
            roots=[server.process for server in started],
            send=send,
        )


async def over_streams(
    target: str, requests: Sequence[bytes], *, in_flight: int, **options: Any
) -> LoadResult:
    """Do as `closed_loop`, over streams."""
    streams = _STREAMS[in_flight]
    return await stream_loop(target, requests, streams=streams, in_flight=in_flight, **options)


async def on_connections(
    target: str, requests: Sequence[bytes], *, in_flight: int, **options: Any
) -> LoadResult:
    """Do as `closed_loop`, on several connections."""
    connections = min(in_flight, _CONNECTIONS)
    return await closed_loop(target, requests, in_flight=in_flight, connections=connections, **options)


def blocks(models: Path, folder: Path) -> Iterator[list[AbstractContextManager[Setup]]]:
    """Yield what is started and measured together: setups at rest take nothing, but for Ray."""
    yield [
        served("streams", models, *_NO_HTTP, send=over_streams),
        served("`--workers 2`", models, *_NO_HTTP, "--workers", "2", send=on_connections),
        served("two servers in turn", models, *_NO_HTTP, "--threads", "1", servers=2),
    ]
    if find_spec("ray") is None:
        console.print("Ray is not installed, and is left out: pip install 'polyhead[ray]'", markup=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    yield [served(RAY, models, "--engine", "ray", "--host", "0.0.0.0", log=folder / "log")]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A setup beside the plain server of its block."""

    name: str
    loads: Mapping[int, Rounds]
    """By requests in flight."""
    memory_mib: float
    """After the load, without what processes share."""
    processes: int

    def median(self, in_flight: int, field: str) -> float:
        """Return the median of the rounds."""
        return self.loads[in_flight].median(self.name, field)

    def ratios(self, in_flight: int, field: str) -> list[float]:
        """Return a setup's numbers divided by the plain server's in the same round, ascending."""
        return self.loads[in_flight].ratios(self.name, PLAIN, field)


def targets(compared: Sequence[Compared]) -> list[Condition]:
    """Return what Ray should reach."""
    return [
        at_most("Ray, one in flight: p50", _LATENCY, PLAIN, each.ratios(1, "p50_ms"))
        for each in compared
        if each.name == RAY
    ]


def sections(compared: Sequence[Compared]) -> list[str]:
    """Return the page's tables."""
    lines: list[str] = []
    for in_flight in IN_FLIGHT:
        rows = markdown_table(each.loads[in_flight].row(each.name, PLAIN) for each in compared)
        lines += [f"## {in_flight} in flight", "", *rows]
    return [
        *lines,
        f"## CPU time of a request, {IN_FLIGHT[-1]} in flight, ms, and memory that no other process shares",
        "",
        *markdown_table(_process_row(each) for each in compared),
    ]


def _process_row(each: Compared) -> dict[str, str]:
    """Return the CPU time of a request by part, in the median of the rounds, and what the processes hold."""
    samples = [
        sample.cpu_ms
        for sample in each.loads[IN_FLIGHT[-1]].samples[each.name]
        if isinstance(sample, ScalingSample)
    ]
    parts = (_CLIENT, _PROXY, _INGRESS, _SERVER, _REST)
    medians = {part: median(sample.get(part, 0.0) for sample in samples) for part in parts}
    return {
        "": each.name,
        **{part: f"{value:.2f}" if value else "" for part, value in medians.items()},
        "sum": f"{sum(medians.values()):.2f}",
        "processes": str(each.processes),
        "memory, MiB": spell_number(each.memory_mib),
    }


def main() -> int:
    """Measure, report, and return 0 if every target is met."""
    chosen = options(__doc__, "scaling", seconds=1.5, rounds=3).parse_args()
    export_missing([_ENCODER], chosen.models)
    compared: list[Compared] = []
    with served(PLAIN, chosen.models, *_NO_HTTP) as plain:
        for block in blocks(chosen.models, chosen.out.parent / "ray"):
            with ExitStack() as stack:
                with console.status("starting"):
                    setups = [stack.enter_context(setup) for setup in block]
                on_ray = bool(compared)
                samples = measure_all(
                    [plain, *setups], rounds=chosen.rounds, seconds=chosen.seconds, apart=on_ray
                )
                loads = {in_flight: Rounds(samples=found) for in_flight, found in samples.items()}
                compared += [
                    Compared(
                        name=each.name,
                        loads=loads,
                        memory_mib=each.memory_mib(),
                        processes=len(each.processes()),
                    )
                    for each in (setups if on_ray else [plain, *setups])
                ]
    return finish(
        chosen,
        "make scaling",
        "More than one server, on one machine",
        sections(compared),
        conditions=targets(compared),
        intro=[f"{describe(_ENCODER)}, T = {_ENCODER.tokens}. {in_rounds(chosen)}"],
        facts={"setups": compared},
    )


if __name__ == "__main__":
    sys.exit(main())
