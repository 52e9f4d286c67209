"""`make bench`: what serving costs on top of onnxruntime, as ratios within one run on one machine.

Three programs are measured: onnxruntime in a process of its own (the limit), a `grpc.aio` server that only
echoes (the floor), and polyhead between them. They take turns, for a second or so each and several rounds, so
that a slow phase of the machine slows them all, and each round gives its own ratio. Compare ratios: absolute
numbers are this machine's.

`--baseline PATH` adds the server of another checkout, to compare two versions. It takes turns with the others
and has a model repository of its own, exported by that checkout.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.progress import Progress

from echo_server import echo_server
from encoders import ENCODERS, BenchEncoder, export_missing, mixed_lengths, reply_bytes, request_bytes
from in_process import InProcess, RunConfig, in_process
from load_generator import HEALTH, LoadResult, closed_loop, open_loop, stream_loop
from polyhead_load.schedule import poisson
from report import console, with_fingerprint, write
from servers import ServerProcess, serve
from serving_report import BenchRow, BenchSample, Reference, Target, page, table

_TINY, _SMALL, _LARGE = (encoder.name for encoder in ENCODERS)
_TYPICAL_TOKENS = 32
"""T of the replies that the floor echoes for mixed lengths."""
_ONE_BY_ONE = RunConfig()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Requests, how they are sent, and what they are compared with."""

    name: str
    requests: Sequence[bytes]
    in_flight: int
    batch: int = 1
    """Sequences per request."""
    streams: int = 0
    """0 sends calls."""
    target: Target | None = None
    graph: InProcess
    """The limit's process."""
    limit: RunConfig = _ONE_BY_ONE
    at_once: RunConfig | None = None
    """With several runs at once, if that is measured, too."""
    echo_bytes: int = 0
    """Size of the floor's replies; 0 leaves the floor out."""
    plain: Sequence[bytes] = ()
    """The same requests without attention, if they ask for attention."""


class Bench:
    """One run.

    Args:
        server: The server.
        baseline: The server that it is compared with, if any.
        seconds: Length of a sample; limit and floor get half of it.
        rounds: Samples per measurement.
    """

    def __init__(
        self, server: ServerProcess, baseline: ServerProcess | None, *, seconds: float, rounds: int
    ) -> None:
        self.measurements: list[BenchRow] = []
        self._server = server
        self._baseline = baseline
        self._seconds = seconds
        self._rounds = rounds

    def run(self, encoder: BenchEncoder, models: Path, progress: Progress) -> None:
        """Measure every scenario of an encoder."""
        task = progress.add_task(f"{encoder.name}: limits")
        with ExitStack() as stack:
            fast, explicit = (
                stack.enter_context(in_process(encoder, models, graph))
                for graph in ("model.onnx", "attention.onnx")
            )
            scenarios = [*self._throughput(encoder, fast), *self._attention(encoder, explicit)]
            progress.update(task, total=len(scenarios) + 1)
            for scenario in scenarios:
                progress.update(task, description=f"{encoder.name}: {scenario.name}")
                self.measurements.append(self._measure(encoder, scenario))
                progress.advance(task)
            progress.update(task, description=f"{encoder.name}: open loop")
            self.measurements.append(self._open_loop(encoder))
            progress.update(task, description=encoder.name, completed=len(scenarios) + 1)

    def health(self) -> dict[str, float]:
        """Measure health checks on an idle server, and beside attention replies of 16 MiB."""
        encoder = next(each for each in ENCODERS if each.name == _SMALL)
        layers = range(encoder.config.layers)
        requests = request_bytes(encoder, [240] * 2, attention=layers)
        check = partial(closed_loop, self._server.address, [b""], in_flight=1, path=HEALTH)
        idle = asyncio.run(check(seconds=1.0))

        async def both() -> tuple[LoadResult, LoadResult]:
            seconds = 2 * self._seconds
            replies = closed_loop(self._server.address, requests, in_flight=2, seconds=seconds)
            return await asyncio.gather(check(seconds=seconds), replies)

        beside, replies = asyncio.run(both())
        return {
            "reply_mib": reply_bytes(encoder, 240, attention=layers) / 2**20,
            "reply_p50_ms": replies.percentile_ms(50),
            "idle_p50_ms": idle.percentile_ms(50),
            "idle_p99_ms": idle.percentile_ms(99),
            "beside_p50_ms": beside.percentile_ms(50),
            "beside_p99_ms": beside.percentile_ms(99),
        }

    def _throughput(self, encoder: BenchEncoder, graph: InProcess) -> Iterator[Scenario]:
        """Yield the scenarios without attention."""
        best = partial(graph.best, seconds=self._seconds / 4)
        equal_limits, mixed_limits = (
            {"limit": best(mixed=mixed, at_once=False), "at_once": best(mixed=mixed, at_once=True)}
            for mixed in (False, True)
        )
        tiny = encoder.name == _TINY
        lengths = [encoder.tokens] * 64
        size = reply_bytes(encoder, encoder.tokens)
        equal = partial(Scenario, requests=request_bytes(encoder, lengths), graph=graph, echo_bytes=size)
        many = partial(equal, **equal_limits)
        mixed = partial(equal, **mixed_limits, requests=request_bytes(encoder, mixed_lengths(encoder.mixed)))
        near_limit = Target(of="limit", least=0.95)
        latency = Target(of="floor", most=1.4) if tiny else Target(of="limit", most=1.2, plus_ms=0.5)
        yield equal(name="equal", in_flight=1, target=latency)
        yield many(name="equal", in_flight=8, target=None if tiny else near_limit)
        yield many(name="equal", in_flight=32, target=Target(of="floor", least=0.65) if tiny else near_limit)
        yield many(
            name="equal, 8 a call",
            requests=request_bytes(encoder, lengths, batch=8),
            in_flight=8,
            batch=8,
            echo_bytes=8 * size,
            target=Target(of="limit", least=0.6) if tiny else None,
        )
        if tiny:
            yield equal(name="equal, one stream", in_flight=1, streams=1)
            yield many(name="equal, one stream", in_flight=8, streams=1)
            yield many(name="equal, 4 streams", in_flight=32, streams=4)
        for in_flight in (8, 32):
            yield mixed(
                name="mixed",
                in_flight=in_flight,
                echo_bytes=reply_bytes(encoder, _TYPICAL_TOKENS),
                target=None if tiny else Target(of="limit", least=0.9),
            )

    def _attention(self, encoder: BenchEncoder, graph: InProcess) -> Iterator[Scenario]:
        """Yield the scenarios with attention in the reply."""
        lengths = [encoder.tokens] * 8
        layers = range(encoder.config.layers)
        for name, asked, dtype, most in (
            ("one layer's attention", [0], None, None),
            ("all attention", layers, None, 1.5),
            ("all attention, UINT8", layers, "UINT8", 1.2),
        ):
            yield Scenario(
                name=name,
                requests=request_bytes(encoder, lengths, attention=asked, dtype=dtype),
                in_flight=1,
                graph=graph,
                plain=request_bytes(encoder, lengths),
                target=Target(of="plain", most=most) if most and encoder.name == _LARGE else None,
            )

    def _measure(self, encoder: BenchEncoder, scenario: Scenario) -> BenchRow:
        """Measure one scenario and its references in turn."""
        latency, half = scenario.in_flight == 1, self._seconds / 2

        def value(load: LoadResult) -> float:
            return load.percentile_ms(50) if latency else scenario.batch * load.rate

        in_process = scenario.graph.p50_ms if latency else scenario.graph.rate
        references: dict[Reference, Callable[[], float]] = {
            "limit": partial(in_process, scenario.limit, half)
        }
        if scenario.at_once:
            references["at_once"] = partial(in_process, scenario.at_once, half)
        samples = []
        with ExitStack() as stack:
            if scenario.echo_bytes:
                echo = stack.enter_context(echo_server(scenario.echo_bytes))
                references["floor"] = lambda: value(_load(echo, scenario, half))
            if scenario.plain:
                plain = replace(scenario, requests=scenario.plain)
                references["plain"] = lambda: value(self._serve(self._server, plain)[0])
            if baseline := self._baseline:
                references["baseline"] = lambda: value(self._serve(baseline, scenario)[0])
            for number in range(self._rounds):
                found: dict[Reference, float] = {}
                if number % 2:  # first and last in turn
                    load, cores = self._serve(self._server, scenario)
                for name, measure in references.items():
                    found[name] = measure()
                if not number % 2:
                    load, cores = self._serve(self._server, scenario)
                samples.append(BenchSample.of(load, cores, value(load), found))
        return BenchRow(
            encoder=encoder.name,
            traffic=scenario.name,
            in_flight=scenario.in_flight,
            unit="p50 ms" if latency else "seq/s",
            target=scenario.target,
            samples=samples,
        )

    def _serve(self, server: ServerProcess, scenario: Scenario) -> tuple[LoadResult, float]:
        """Load a server; return the result, and the number of cores that it kept busy."""
        # Unmeasured first: connections, caches and clocks come up to speed.
        _load(server.address, scenario, self._seconds / 5)
        return _with_cores(server, lambda: _load(server.address, scenario, self._seconds))

    def _open_loop(self, encoder: BenchEncoder) -> BenchRow:
        """Measure Poisson arrivals at half of the rate with 32 in flight."""
        full = next(
            each.median("polyhead")
            for each in self.measurements
            if (each.encoder, each.traffic, each.in_flight) == (encoder.name, "equal", 32)
        )
        requests = request_bytes(encoder, [encoder.tokens] * 64)
        arrivals = poisson(full / 2, 0, seconds=2 * self._seconds)
        load, cores = _with_cores(
            self._server, lambda: asyncio.run(open_loop(self._server.address, requests, arrivals))
        )
        return BenchRow(
            encoder=encoder.name,
            traffic="open loop at half of that",
            in_flight=None,
            unit="seq/s",
            target=None,
            samples=[BenchSample.of(load, cores, load.rate, {})],
        )


def _load(address: str, scenario: Scenario, seconds: float) -> LoadResult:
    """Send a scenario's requests."""
    requests, in_flight = scenario.requests, scenario.in_flight
    if scenario.streams:
        loop = stream_loop(address, requests, streams=scenario.streams, in_flight=in_flight, seconds=seconds)
    else:
        loop = closed_loop(address, requests, in_flight=in_flight, seconds=seconds)
    return asyncio.run(loop)


def _with_cores(server: ServerProcess, run: Callable[[], LoadResult]) -> tuple[LoadResult, float]:
    """Run a load; return it, and the number of cores that the server kept busy."""
    cpu, start = server.cpu_seconds(), time.perf_counter()
    load = run()
    return load, (server.cpu_seconds() - cpu) / (time.perf_counter() - start)


@contextmanager
def _baseline_server(
    checkout: Path, encoders: Sequence[BenchEncoder], flags: Sequence[str]
) -> Iterator[ServerProcess]:
    """Serve the encoders by the code of another checkout, from a repository that it exports."""
    roots = ("model", "export", "proto", "server", "client", "load", "benchmarks")
    environment = {"PYTHONPATH": os.pathsep.join(str(checkout / root) for root in roots)}
    models = checkout / "build" / "bench-models"
    code = (
        "import pathlib, sys, encoders as e\n"
        "e.export_missing([each for each in e.ENCODERS if each.name in sys.argv], pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(models), *(encoder.name for encoder in encoders)]
    subprocess.run(command, env=os.environ | environment, check=True)
    with serve(models, flags, environment=environment) as server:
        yield server


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other flags are `polyhead serve`'s.")
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/serving"), help="without its ending")
    parser.add_argument("--seconds", type=float, default=1.5, help="per sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples per measurement")
    names = [encoder.name for encoder in ENCODERS]
    parser.add_argument("--encoders", nargs="+", choices=names, default=names)
    parser.add_argument("--baseline", type=Path, help="another checkout, whose server takes part")
    chosen, flags = parser.parse_known_args(arguments)
    encoders = [encoder for encoder in ENCODERS if encoder.name in chosen.encoders]
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(console=console))
        task = progress.add_task("exporting", total=None)
        export_missing(encoders, chosen.models)
        baseline = None
        if chosen.baseline:
            baseline = stack.enter_context(_baseline_server(chosen.baseline.resolve(), encoders, flags))
        server = stack.enter_context(serve(chosen.models, flags))
        progress.remove_task(task)
        bench = Bench(server, baseline, seconds=chosen.seconds, rounds=chosen.rounds)
        for encoder in encoders:
            bench.run(encoder, chosen.models, progress)
        health = bench.health() if _SMALL in chosen.encoders else {}
    console.print(table(bench.measurements))
    result = with_fingerprint({"health": health, "cells": [each.facts() for each in bench.measurements]})
    write(chosen.out, result, page(bench.measurements, health, result["fingerprint"]))
    console.print("ratios only compare within this run")


if __name__ == "__main__":
    main()
