"""`make bench`: what serving costs on top of onnxruntime, as ratios within one run on one machine.

Three things are measured side by side: onnxruntime in a process of its own (the limit), a `grpc.aio`
server that only echoes (the floor), and polyhead between them. They take turns, a second or so each, in
several rounds: a machine that is slow for a while is slow for all of them, and each round gives a ratio of
its own. Absolute numbers are this machine's; the ratios are what to compare.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from echo import __file__ as echo_script
from encoders import (
    ENCODERS,
    BenchEncoder,
    equal_lengths,
    export_missing,
    mixed_lengths,
    reply_bytes,
    request_bytes,
)
from in_process import InProcess, Way, in_process
from load import HEALTH, Load, closed_loop, health_beside, send_at, stream_loop
from polyhead_load.schedule import poisson
from polyhead_load.sweep.fingerprint import fingerprint
from servers import Served, polyhead_server
from serving_report import Cell, Sample, Target, page, table

console = Console()
if not console.is_terminal:
    console.width = 140

_SMALL = "bench-256"
_TYPICAL_TOKENS = 32
"""The length that the echo of mixed lengths is sized for."""


@contextmanager
def echo_server(size: int) -> Iterator[str]:
    """Start the floor, for replies of `size` bytes."""
    command = [sys.executable, echo_script, "--reply-bytes", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None:
                raise RuntimeError("the echo server has no output")
            yield f"127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


class Bench:
    """One run.

    Args:
        served: The server.
        models: Its repository.
        seconds: For each sample of polyhead; the limit and the floor get half of it.
        rounds: Samples of each.
        progress: Shows how far it is.
    """

    def __init__(
        self, served: Served, models: Path, *, seconds: float, rounds: int, progress: Progress
    ) -> None:
        self._served = served
        self._models = models
        self._seconds = seconds
        self._rounds = rounds
        self._progress = progress
        self.cells: list[Cell] = []

    def measure(self, encoder: BenchEncoder) -> None:
        """Measure all cells of one encoder."""
        total = 13 if encoder.name == _SMALL else 10
        task = self._progress.add_task(f"{encoder.name}: limits", total=total)
        with ExitStack() as stack:
            fast = stack.enter_context(in_process(encoder, self._models))
            explicit = stack.enter_context(in_process(encoder, self._models, "attention.onnx"))
            quick = self._seconds / 4
            equal, mixed = (
                (
                    fast.best(mixed=kind, at_once=False, seconds=quick),
                    fast.best(mixed=kind, at_once=True, seconds=quick),
                )
                for kind in (False, True)
            )
            for cell in self._throughput(encoder, fast, equal, mixed):
                self._progress.update(task, description=f"{encoder.name}: {cell.traffic}", advance=1)
                self.cells.append(cell)
            self._progress.update(task, description=f"{encoder.name}: attention")
            self.cells += self._attention(encoder, explicit)
            self._progress.update(task, description=f"{encoder.name}: open loop", advance=3)
            self.cells.append(self._open(encoder))
            self._progress.update(task, description=encoder.name, completed=total)

    def health(self) -> dict[str, float]:
        """Measure health checks beside attention replies of 16 MiB, and on an idle server."""
        encoder = next(each for each in ENCODERS if each.name == "bench-384")
        layers = list(range(encoder.config.layers))
        requests = request_bytes(encoder, [240] * 2, attention=layers)
        address = self._served.address
        idle = asyncio.run(closed_loop(address, [b""], in_flight=1, seconds=1.0, path=HEALTH))
        checks, replies = asyncio.run(
            health_beside(address, requests, in_flight=2, seconds=2 * self._seconds)
        )
        return {
            "reply_mib": reply_bytes(encoder, 240, attention=layers) / 2**20,
            "reply_p50_ms": replies.percentile_ms(50),
            "idle_p50_ms": idle.percentile_ms(50),
            "idle_p99_ms": idle.percentile_ms(99),
            "beside_p50_ms": checks.percentile_ms(50),
            "beside_p99_ms": checks.percentile_ms(99),
        }

    def _throughput(
        self, encoder: BenchEncoder, limit: InProcess, equal: tuple[Way, Way], mixed: tuple[Way, Way]
    ) -> Iterator[Cell]:
        small = encoder.name == _SMALL
        requests = request_bytes(encoder, equal_lengths(encoder, 64))
        size = reply_bytes(encoder, encoder.tokens)
        one = Target(of="floor", most=1.4) if small else Target(of="limit", most=1.2, plus_ms=0.5)
        yield self._latency(encoder, requests, limit, size, one)
        rate = partial(self._rate, encoder, "equal", requests, limit=(limit, equal), size=size)
        for in_flight in (8, 32):
            target = Target(of="limit", least=0.95)
            if small:
                target = Target(of="floor", least=0.65) if in_flight == 32 else Target()
            yield rate(in_flight=in_flight, target=target)
        yield self._rate(
            encoder,
            "equal, 8 a call",
            request_bytes(encoder, equal_lengths(encoder, 64), batch=8),
            in_flight=8,
            limit=(limit, equal),
            size=8 * size,
            target=Target(of="limit", least=0.6) if small else Target(),
            sequences=8,
        )
        if small:
            yield self._latency(encoder, requests, limit, size, Target(), streams=1)
            for streams, in_flight in ((1, 8), (4, 32)):
                yield rate(in_flight=in_flight, target=Target(), streams=streams)
        for in_flight in (8, 32):
            yield self._rate(
                encoder,
                "mixed",
                request_bytes(encoder, mixed_lengths(encoder.round)),
                in_flight=in_flight,
                limit=(limit, mixed),
                size=reply_bytes(encoder, _TYPICAL_TOKENS),
                target=Target() if small else Target(of="limit", least=0.9),
            )

    def _latency(
        self,
        encoder: BenchEncoder,
        requests: list[bytes],
        limit: InProcess,
        size: int,
        target: Target,
        *,
        streams: int = 0,
    ) -> Cell:
        """Measure one request in flight."""
        samples = []
        with echo_server(size) as echo:
            for _ in range(self._rounds):
                single = limit.p50_ms(Way(mixed=False), self._seconds / 2)
                floor = self._load(echo, requests, 1, self._seconds / 2, streams)
                load, cores = self._serve(requests, 1, streams)
                samples.append(
                    Sample.of(
                        load, cores, load.percentile_ms(50), limit=single, floor=floor.percentile_ms(50)
                    )
                )
        return Cell(encoder.name, _named("equal", streams), 1, "p50 ms", target, samples)

    def _rate(
        self,
        encoder: BenchEncoder,
        traffic: str,
        requests: list[bytes],
        *,
        in_flight: int,
        limit: tuple[InProcess, tuple[Way, Way]],
        size: int,
        target: Target,
        sequences: int = 1,
        streams: int = 0,
    ) -> Cell:
        """Measure several requests in flight."""
        samples = []
        process, ways = limit
        with echo_server(size) as echo:
            for _ in range(self._rounds):
                best, at_once = (process.rate(way, self._seconds / 2) for way in ways)
                floor = self._load(echo, requests, in_flight, self._seconds / 2, streams)
                load, cores = self._serve(requests, in_flight, streams)
                samples.append(
                    Sample.of(
                        load,
                        cores,
                        sequences * load.rate,
                        limit=best,
                        at_once=at_once,
                        floor=sequences * floor.rate,
                    )
                )
        return Cell(encoder.name, _named(traffic, streams), in_flight, "seq/s", target, samples)

    def _attention(self, encoder: BenchEncoder, limit: InProcess) -> list[Cell]:
        """Measure what attention in the reply costs, against the same without, one in flight."""
        layers = list(range(encoder.config.layers))
        asked = (
            ("one layer's attention", [0], None, Target()),
            ("all attention", layers, None, Target(of="plain", most=1.5)),
            ("all attention, UINT8", layers, "UINT8", Target(of="plain", most=1.2)),
        )
        lengths = equal_lengths(encoder, 8)
        samples: dict[str, list[Sample]] = {name: [] for name, *_ in asked}
        for _ in range(self._rounds):
            single = limit.p50_ms(Way(mixed=False), self._seconds / 2)
            plain, _ = self._serve(request_bytes(encoder, lengths), 1)
            for name, attention, dtype, _ in asked:
                load, cores = self._serve(
                    request_bytes(encoder, lengths, attention=attention, dtype=dtype), 1
                )
                samples[name].append(
                    Sample.of(
                        load, cores, load.percentile_ms(50), limit=single, plain=plain.percentile_ms(50)
                    )
                )
        large = encoder.name == "bench-768"
        return [
            Cell(encoder.name, name, 1, "p50 ms", target if large else Target(), samples[name])
            for name, _, _, target in asked
        ]

    def _open(self, encoder: BenchEncoder) -> Cell:
        """Measure Poisson arrivals at half of the rate with 32 in flight."""
        (full,) = (
            cell.middle("polyhead")
            for cell in self.cells
            if (cell.encoder, cell.traffic, cell.in_flight) == (encoder.name, "equal", 32)
        )
        requests = request_bytes(encoder, equal_lengths(encoder, 64))
        with self._cores() as cores:
            arrivals = list(poisson(full / 2, 0, seconds=2 * self._seconds))
            load = asyncio.run(send_at(self._served.address, requests, arrivals))
        sample = Sample.of(load, cores[0], load.rate)
        return Cell(encoder.name, "open loop at half of that", None, "seq/s", Target(), [sample])

    def _serve(self, requests: list[bytes], in_flight: int, streams: int = 0) -> tuple[Load, float]:
        """Return one sample of polyhead, and the processors that it kept busy."""
        # Unmeasured first: connections, caches and clocks come up to speed.
        self._load(self._served.address, requests, in_flight, self._seconds / 5, streams)
        with self._cores() as cores:
            load = self._load(self._served.address, requests, in_flight, self._seconds, streams)
        return load, cores[0]

    @contextmanager
    def _cores(self) -> Iterator[list[float]]:
        """Measure how many processors polyhead keeps busy, from the first call to the last."""
        cores: list[float] = []
        cpu, start = self._served.cpu_seconds(), time.perf_counter()
        yield cores
        cores.append((self._served.cpu_seconds() - cpu) / (time.perf_counter() - start))

    @staticmethod
    def _load(address: str, requests: list[bytes], in_flight: int, seconds: float, streams: int = 0) -> Load:
        """Call, or send requests over so many streams."""
        if streams:
            return asyncio.run(
                stream_loop(address, requests, streams=streams, in_flight=in_flight, seconds=seconds)
            )
        return asyncio.run(closed_loop(address, requests, in_flight=in_flight, seconds=seconds))


def _named(traffic: str, streams: int) -> str:
    return traffic + {0: "", 1: ", one stream"}.get(streams, f", {streams} streams")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/serving"), help="without its ending")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each cell")
    parser.add_argument("--encoders", nargs="+", default=[encoder.name for encoder in ENCODERS])
    chosen, serve_arguments = parser.parse_known_args(arguments)
    encoders = [encoder for encoder in ENCODERS if encoder.name in chosen.encoders]
    with Progress(console=console) as progress:
        task = progress.add_task("exporting", total=None)
        export_missing(encoders, chosen.models)
        progress.remove_task(task)
        with polyhead_server(chosen.models, serve_arguments) as served:
            bench = Bench(
                served, chosen.models, seconds=chosen.seconds, rounds=chosen.rounds, progress=progress
            )
            for encoder in encoders:
                bench.measure(encoder)
            health = bench.health() if "bench-384" in chosen.encoders else {}
    console.print(table(bench.cells))
    facts = fingerprint(sys.argv)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"fingerprint": facts, "health": health, "cells": [cell.facts() for cell in bench.cells]}
    chosen.out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    chosen.out.with_suffix(".md").write_text(page(bench.cells, health, facts))
    console.print(f"{chosen.out.with_suffix('.md')} and .json; ratios only compare within this run")


if __name__ == "__main__":
    main()
