"""`make scaling`: what it costs to serve with more than one server, beside a plain one on the same machine.

One encoder, bench-384, behind a plain server, over streams, behind two workers, two servers that take
turns, and Ray Serve, under the same load, in turn. With more processors all but the first would be faster;
what is measured is the cost of what lies between a client and the encoder.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.encoders import ENCODERS, export_missing, request_bytes
from benchmarks.load_generator import LoadResult, Send, closed_loop, stream_loop
from benchmarks.report import (
    Condition,
    conclude,
    conditions_rows,
    console,
    heading,
    markdown_table,
    options,
    spell_number,
    spell_ratios,
    with_fingerprint,
)
from benchmarks.turns import in_turn, paired_ratios
from polyhead_client import Client
from polyhead_load.sweep.server import free_port, running, started_server
from polyhead_server.ray import ENVIRONMENT

_ENCODER = ENCODERS[1]
_NO_HTTP = ("--http-port", "off")
IN_FLIGHT = (1, 8, 32)
PLAIN = "one server"
_HAPROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "1"}
ONE_REPLICA: Mapping[str, Mapping[str, str]] = {
    "Ray Serve, one replica": {},
    "Ray Serve, one replica, HAProxy": _HAPROXY,
}
"""By path, with its environment."""
TWO_NODES: Mapping[str, Mapping[str, str]] = {
    "Ray Serve, two nodes": {},
    "Ray Serve, two nodes, HAProxy": _HAPROXY,
}
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
_IDLE_SECONDS = 2.0
_START_SECONDS = 120.0
_LATENCY = 2.0
_THROUGHPUT = 0.95
_BATCH = 2.0


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
        other = _REST if self.name in {*ONE_REPLICA, *TWO_NODES} else _SERVER
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
class ScalingSample:
    """One load of one setup."""

    rate: float
    """Sequences per second."""
    p50_ms: float
    batch: float
    """Sequences per run, in the mean."""
    errors: int
    client_cores: float
    server_cores: float
    cpu_ms: Mapping[str, float]
    """CPU time of a request, by part; the client's, too."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a setup takes while nothing is asked of it."""

    cores: float
    memory_mib: float
    processes: int


Samples = Mapping[str, Mapping[int, Sequence[ScalingSample]]]
"""By setup and requests in flight; one of each round."""


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
    return ScalingSample(
        rate=load.rate,
        p50_ms=load.percentile_ms(50),
        batch=sequences / max(runs, 1),
        errors=load.errors,
        client_cores=load.client_cores,
        server_cores=load.server_cores,
        cpu_ms={
            part: 1e3 * taken / answers
            for part, taken in {_CLIENT: load.client_cores * load.seconds, **parts}.items()
        },
    )


def measure_all(
    setups: Sequence[Setup], *, rounds: int, seconds: float, apart: bool
) -> dict[str, dict[int, list[ScalingSample]]]:
    """Load setups in turn, in every second round backwards.

    Args:
        setups: All of them.
        rounds: Samples of each.
        seconds: Length of a sample.
        apart: Stop the last while the others are measured.
    """
    requests = request_bytes(_ENCODER, [_ENCODER.tokens] * 64)
    samples: dict[str, dict[int, list[ScalingSample]]] = {
        each.name: {in_flight: [] for in_flight in IN_FLIGHT} for each in setups
    }
    for setup in setups:  # costs are learned, connections opened
        measure(setup, IN_FLIGHT[-1], seconds, requests)
    for order in in_turn(setups, rounds):
        for in_flight in IN_FLIGHT:
            for setup in order:
                with ExitStack() as stack:
                    if apart and setup is not setups[-1]:
                        stack.enter_context(setups[-1].suspended())
                    samples[setup.name][in_flight].append(measure(setup, in_flight, seconds, requests))
    return samples


def standing(setup: Setup) -> Standing:
    """Measure what a setup takes at rest."""
    before = sum(setup.cpu_seconds().values())
    time.sleep(_IDLE_SECONDS)
    return Standing(
        cores=(sum(setup.cpu_seconds().values()) - before) / _IDLE_SECONDS,
        memory_mib=setup.memory_mib(),
        processes=len(setup.processes()),
    )


@contextmanager
def served(
    name: str,
    models: Path,
    *flags: str,
    servers: int = 1,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    send: Send = closed_loop,
) -> Iterator[Setup]:
    """Start servers; several take turns."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                started_server(models, ["--log-level", "error", *flags], log=log, environment=environment)
            )
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


@contextmanager
def two_nodes(name: str, models: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[Setup]:
    """Start two nodes of Ray, with a replica of one thread on each."""
    port = free_port()
    service = "polyhead_server.ray.services.add_"
    config = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": free_port()},
        "grpc_options": {
            "port": port,
            "grpc_servicer_functions": [f"{service}inference_service", f"{service}health_service"],
        },
        "applications": [
            {
                "name": "polyhead",
                "import_path": "polyhead_server.ray.application:build",
                "args": {"models": str(models.resolve()), "replicas": 2, "cpus": 1},
            }
        ],
    }
    file = folder / "serve.json"  # which is YAML, too
    file.write_text(json.dumps(config))
    address = f"127.0.0.1:{port}"
    cluster = [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), "2", "1", str(file)]
    with running(cluster, log=folder / "log", environment={**ENVIRONMENT, **environment}) as process:
        _wait_until_ready(address, process)
        yield Setup(name=name, target=address, addresses=[address], roots=[process])


def _wait_until_ready(address: str, process: psutil.Popen) -> None:
    """Wait for a replica; until the application is there, HAProxy says NOT_FOUND, which is not ready here.

    Raises:
        RuntimeError: The process ended, or they take too long.
    """
    until = time.monotonic() + _START_SECONDS
    with Client(address, timeout=5) as client:
        while not client.ready(_ENCODER.name):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"two nodes of Ray must be ready within {_START_SECONDS:g} s: see ray/log")
            time.sleep(0.5)


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
        console.print("Ray is not installed, and is left out: pip install 'polyhead[ray]'")
        return
    folder.mkdir(parents=True, exist_ok=True)
    flags, log = ("--engine", "ray", "--host", "0.0.0.0"), folder / "log"
    for name, environment in ONE_REPLICA.items():
        yield [served(name, models, *flags, log=log, environment=environment)]
    for name, environment in TWO_NODES.items():
        yield [two_nodes(name, models, folder, environment)]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A setup beside the plain server of its block."""

    name: str
    samples: Mapping[int, Sequence[ScalingSample]]
    plain: Mapping[int, Sequence[ScalingSample]]
    rest: Standing

    def median(self, in_flight: int, field: str) -> float:
        """Return the median of the rounds."""
        return float(median(getattr(sample, field) for sample in self.samples[in_flight]))

    def ratios(self, in_flight: int, field: str) -> list[float]:
        """Return a setup's numbers divided by the plain server's in the same round, ascending."""
        own, plain = (
            [getattr(sample, field) for sample in of[in_flight]] for of in (self.samples, self.plain)
        )
        return paired_ratios(own, plain)


def targets(compared: Sequence[Compared]) -> list[Condition]:
    """Return what Ray should reach, on the better of its paths."""
    one_replica = [each for each in compared if each.name in ONE_REPLICA]
    two_nodes = [each for each in compared if each.name in TWO_NODES]
    if not one_replica or not two_nodes:
        return []
    most = IN_FLIGHT[-1]
    p50 = {each.name: median(each.ratios(1, "p50_ms")) for each in one_replica}
    rates = {each.name: median(each.ratios(most, "rate")) for each in [*one_replica, *two_nodes]}
    of_one = {
        two: rates[two] / rates[one]
        for one, two in zip(ONE_REPLICA, TWO_NODES, strict=True)
        if one in rates and two in rates
    }
    batches = {each.name: each.median(most, "batch") for each in two_nodes}
    return [
        Condition(
            name=f"one replica, one in flight: p50 ≤ {_LATENCY:g} × {PLAIN}'s",
            holds=min(p50.values()) <= _LATENCY,
            seen=_spell(p50, ".2f"),
        ),
        Condition(
            name=f"two nodes, {most} in flight: requests/s ≥ {_THROUGHPUT:g} × {PLAIN}'s",
            holds=max(rates[each.name] for each in two_nodes) >= _THROUGHPUT,
            seen=_spell({each.name: rates[each.name] for each in two_nodes}, ".2f"),
        ),
        Condition(
            name=f"two nodes, {most} in flight: requests/s ≥ {_THROUGHPUT:g} × one replica's, same path",
            holds=max(of_one.values(), default=0) >= _THROUGHPUT,
            seen=_spell(of_one, ".2f"),
        ),
        Condition(
            name=f"two nodes, {most} in flight: {_BATCH:g} sequences per run or more",
            holds=max(batches.values()) >= _BATCH,
            seen=_spell(batches, ".1f"),
        ),
    ]


def _spell(values: Mapping[str, float], how: str) -> str:
    return ", ".join(f"{value:{how}} ({name.removeprefix('Ray Serve, ')})" for name, value in values.items())


def page(result: Mapping[str, Any]) -> str:
    """Return the comparison as a page in Markdown."""
    config = _ENCODER.config
    compared: Sequence[Compared] = result["setups"]
    lines = [
        *heading("More than one server, on one machine", "scaling", result),
        f"D = {config.d_model}, H = {config.heads}, {config.layers} layers with feed-forward, T = "
        f"{_ENCODER.tokens}; medians of {result['rounds']} rounds of {result['seconds']:g} s, in turn.",
        "Client and servers share the machine. “×” divides by a plain server's in the same round, with",
        "the lowest and the highest round in brackets. While it is measured, Ray's processes are stopped.",
        "",
        *conditions_rows(result["targets"]),
    ]
    for in_flight in IN_FLIGHT:
        lines += [
            f"## {in_flight} in flight",
            "",
            *markdown_table(_row(each, in_flight) for each in compared),
        ]
    for in_flight in (IN_FLIGHT[0], IN_FLIGHT[-1]):
        lines += [
            f"## CPU time of a request, {in_flight} in flight, ms",
            "",
            *markdown_table(_cpu_row(each, in_flight) for each in compared),
        ]
    lines += [
        "## At rest",
        "",
        "Cores that are busy although nothing is asked, and memory that no other process shares.",
        "",
        *markdown_table(
            {
                "": each.name,
                "processes": each.rest.processes,
                "cores": f"{each.rest.cores:.2f}",
                "memory, MiB": spell_number(each.rest.memory_mib),
            }
            for each in compared
        ),
        "## How it was measured",
        "",
        "* An asyncio client sends single sequences, built before the clock starts, and does not decode",
        "  the replies. Streams: one, or four for 32 in flight. Workers: up to eight connections, because",
        "  the system gives each to one worker.",
        "* The two servers and the replicas on two nodes run with one thread each, everything else with two.",
        "* Ray Serve: `polyhead serve --engine ray`, through its proxy actor and through HAProxy; two nodes",
        "  are two raylets on this machine, each with a replica.",
        "* CPU time is that of whole processes, by what their command lines say; the rest of Ray is the",
        "  controller, the raylets, the GCS and agents.",
        "",
    ]
    return "\n".join(lines)


def _row(each: Compared, in_flight: int) -> dict[str, str]:
    def ratio(field: str) -> str:
        return spell_ratios(each.ratios(in_flight, field))

    plain = each.name == PLAIN
    return {
        "": f"**{each.name}**" if plain else each.name,
        "requests/s": spell_number(each.median(in_flight, "rate")),
        "×": "" if plain else ratio("rate"),
        "p50 ms": spell_number(each.median(in_flight, "p50_ms")),
        "× ": "" if plain else ratio("p50_ms"),
        "sequences per run": f"{each.median(in_flight, 'batch'):.1f}",
        "cores: client / server": f"{each.median(in_flight, 'client_cores'):.2f} / "
        f"{each.median(in_flight, 'server_cores'):.2f}",
        "errors": str(sum(sample.errors for sample in each.samples[in_flight])),
    }


def _cpu_row(each: Compared, in_flight: int) -> dict[str, str]:
    """Return the CPU time of a request by part, in the median of the rounds."""
    samples = [sample.cpu_ms for sample in each.samples[in_flight]]
    parts = (_CLIENT, _PROXY, _INGRESS, _SERVER, _REST)
    medians = {part: median(sample.get(part, 0.0) for sample in samples) for part in parts}
    return {
        "": each.name,
        **{part: f"{value:.2f}" if value else "" for part, value in medians.items()},
        "sum": f"{sum(medians.values()):.2f}",
    }


def main() -> int:
    """Measure, report, and return 0 if every target is met."""
    parser = options(__doc__, "scaling")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each load")
    chosen = parser.parse_args()
    export_missing([_ENCODER], chosen.models)
    compared: list[Compared] = []
    with (
        console.status("measuring") as status,
        served(PLAIN, chosen.models, *_NO_HTTP) as plain,
    ):
        for block in blocks(chosen.models, chosen.out.parent / "ray"):
            with ExitStack() as stack:
                setups = [stack.enter_context(setup) for setup in block]
                on_ray = bool(compared)
                status.update(", ".join(setup.name for setup in setups))
                rests = {setup.name: standing(setup) for setup in (plain, *setups)}
                samples = measure_all(
                    [plain, *setups], rounds=chosen.rounds, seconds=chosen.seconds, apart=on_ray
                )
                names = [setup.name for setup in setups] if on_ray else list(samples)
                compared += [
                    Compared(name=name, samples=samples[name], plain=samples[PLAIN], rest=rests[name])
                    for name in names
                ]
    conditions = targets(compared)
    result = with_fingerprint(
        {
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "targets": conditions,
            "setups": compared,
        }
    )
    return conclude(chosen.out, result, page(result), conditions)


if __name__ == "__main__":
    sys.exit(main())
