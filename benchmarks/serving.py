"""`make bench`: what serving costs on top of onnxruntime, as ratios within one run on one machine.

Three things are measured side by side: onnxruntime in a process of its own (the limit), a `grpc.aio`
server that only echoes (the floor), and polyhead between them. Absolute numbers are this machine's;
the ratios are what to compare.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from echo import __file__ as echo_script
from encoders import ENCODERS, BenchEncoder, equal_lengths, export_missing, mixed_lengths, sequences
from in_process import __file__ as in_process_script
from in_process import feed_of
from load import HEALTH, Load, closed_loop, health_beside, open_loop
from polyhead_proto import messages as pb
from servers import cpu_seconds, fingerprint, polyhead_server

console = Console()
if not console.is_terminal:
    console.width = 140


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measured row."""

    encoder: str
    traffic: str
    in_flight: int | None
    """None in open loop."""
    limit: float
    """In-process: sequences a second at the best batch size, or p50 in ms for one in flight."""
    floor: float
    """The echo server: calls a second, or p50 in ms for one in flight."""
    polyhead: float
    """Sequences a second, or p50 in ms for one in flight."""
    p50_ms: float
    p99_ms: float
    errors: int
    client_cores: float
    server_cores: float

    @property
    def of_limit(self) -> float:
        """What polyhead reaches of the limit."""
        return self.polyhead / self.limit

    @property
    def of_floor(self) -> float:
        """What polyhead reaches of the floor."""
        return self.polyhead / self.floor


def request_bytes(
    encoder: BenchEncoder, lengths: Sequence[int], *, batch: int = 1, attention: Sequence[int] | None = None
) -> list[bytes]:
    """Requests of `batch` sequences each, for the outputs that a client would name."""
    every = sequences(encoder, lengths)
    requests = []
    for start in range(0, len(every) - batch + 1, batch):
        request = pb.ModelInferRequest(model_name=encoder.name + (".attention" if attention else ""))
        for name, datatype in (("x", "FP32"), ("lengths", "INT32")):
            array = feed_of(every[start : start + batch])[name]
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        for name in ("output", *(f"attention.{layer}" for layer in attention or ())):
            request.outputs.add(name=name)
        requests.append(request.SerializeToString())
    return requests


def reply_bytes(encoder: BenchEncoder, tokens: int, batch: int, attention: Sequence[int] | None) -> int:
    """The size of the tensors in a reply."""
    config = encoder.config
    layers = len(attention or ())
    return 4 * batch * (tokens * config.d_model + layers * config.heads * tokens**2)


def in_process(
    encoder: BenchEncoder, models: Path, graph: str, seconds: float
) -> dict[str, dict[str, float]]:
    """Measures the limit in a process of its own."""
    command = [sys.executable, in_process_script, "--models", str(models), "--encoder", encoder.name]
    command += ["--graph", graph, "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    return measured


@contextmanager
def echo_server(size: int) -> Iterator[str]:
    """The floor, for replies of `size` bytes."""
    command = [sys.executable, echo_script, "--reply-bytes", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None:
                raise RuntimeError("the echo server has no output")
            yield f"127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


class Bench:
    """One run: a server, and cells measured against it."""

    def __init__(self, address: str, server: psutil.Process, seconds: float) -> None:
        self.address = address
        self.server = server
        self.seconds = seconds
        self.cells: list[Cell] = []

    def closed(
        self,
        encoder: BenchEncoder,
        traffic: str,
        requests: list[bytes],
        *,
        in_flight: int,
        limit: dict[str, float],
        echo_size: int,
        batch: int = 1,
    ) -> None:
        """Measures one cell in closed loop: floor, then polyhead."""
        with echo_server(echo_size) as echo:
            floor = asyncio.run(closed_loop(echo, requests, in_flight=in_flight, seconds=self.seconds))
        # Unmeasured first: connections, caches and clocks come up to speed.
        asyncio.run(closed_loop(self.address, requests, in_flight=in_flight, seconds=self.seconds / 4))
        before = cpu_seconds(self.server)
        served = asyncio.run(closed_loop(self.address, requests, in_flight=in_flight, seconds=self.seconds))
        single = in_flight == 1 and batch == 1
        self._add(
            encoder,
            traffic,
            served,
            cpu_seconds(self.server) - before,
            in_flight=in_flight,
            limit=limit["p50_ms"] if single else limit["best_rate"],
            floor=floor.percentile_ms(50) if single else floor.rate * batch,
            polyhead=served.percentile_ms(50) if single else served.rate * batch,
        )

    def open(
        self, encoder: BenchEncoder, requests: list[bytes], *, limit: dict[str, float], share: float
    ) -> None:
        """Measures one cell in open loop, at a share of the limit's throughput."""
        rate = share * limit["best_rate"]
        before = cpu_seconds(self.server)
        served = asyncio.run(open_loop(self.address, requests, rate=rate, seconds=2 * self.seconds))
        self._add(
            encoder,
            f"open loop, {share:.0%} of limit",
            served,
            cpu_seconds(self.server) - before,
            in_flight=None,
            limit=rate,
            floor=rate,
            polyhead=served.rate,
        )

    def _add(
        self,
        encoder: BenchEncoder,
        traffic: str,
        served: Load,
        server_cpu: float,
        *,
        in_flight: int | None,
        limit: float,
        floor: float,
        polyhead: float,
    ) -> None:
        self.cells.append(
            Cell(
                encoder=encoder.name,
                traffic=traffic,
                in_flight=in_flight,
                limit=limit,
                floor=floor,
                polyhead=polyhead,
                p50_ms=served.percentile_ms(50),
                p99_ms=served.percentile_ms(99),
                errors=served.errors,
                client_cores=served.client_cpu_seconds / served.seconds,
                server_cores=server_cpu / served.seconds,
            )
        )


def measure(encoder: BenchEncoder, bench: Bench, models: Path) -> None:
    """All cells of one encoder."""
    fast = in_process(encoder, models, "model.onnx", bench.seconds / 3)
    explicit = in_process(encoder, models, "attention.onnx", bench.seconds / 3)
    equal = request_bytes(encoder, equal_lengths(encoder, 64))
    size = reply_bytes(encoder, encoder.tokens, 1, None)
    for in_flight in (1, 8, 32):
        bench.closed(encoder, "equal", equal, in_flight=in_flight, limit=fast["equal"], echo_size=size)
    eight = request_bytes(encoder, equal_lengths(encoder, 64), batch=8)
    bench.closed(
        encoder, "equal, 8 a call", eight, in_flight=8, limit=fast["equal"], echo_size=8 * size, batch=8
    )
    mixed = request_bytes(encoder, mixed_lengths(96))
    typical = reply_bytes(encoder, 32, 1, None)
    for in_flight in (8, 32):
        bench.closed(encoder, "mixed", mixed, in_flight=in_flight, limit=fast["mixed"], echo_size=typical)
    layers = range(encoder.config.layers)
    for name, attention in (("one layer's attention", [0]), ("all attention", list(layers))):
        bench.closed(
            encoder,
            name,
            request_bytes(encoder, equal_lengths(encoder, 8), attention=attention),
            in_flight=1,
            limit=explicit["equal"],
            echo_size=reply_bytes(encoder, encoder.tokens, 1, attention),
        )
    bench.open(encoder, equal, limit=fast["equal"], share=0.5)


def measure_health(bench: Bench) -> dict[str, float]:
    """How long health checks take while attention replies of 16 MiB leave, and while nothing does."""
    encoder = next(each for each in ENCODERS if each.name == "bench-384")
    layers = list(range(encoder.config.layers))
    requests = request_bytes(encoder, [240] * 2, attention=layers)
    idle = asyncio.run(closed_loop(bench.address, [b""], in_flight=1, seconds=1.0, path=HEALTH))
    checks, replies = asyncio.run(
        health_beside(bench.address, requests, in_flight=2, seconds=2 * bench.seconds)
    )
    return {
        "reply_mib": reply_bytes(encoder, 240, 1, layers) / 2**20,
        "reply_p50_ms": replies.percentile_ms(50),
        "idle_p50_ms": idle.percentile_ms(50),
        "idle_p99_ms": idle.percentile_ms(99),
        "beside_p50_ms": checks.percentile_ms(50),
        "beside_p99_ms": checks.percentile_ms(99),
    }


def show(cells: Sequence[Cell]) -> None:
    """Prints the table."""
    table = Table(title="polyhead against onnxruntime alone (limit) and an echoing grpc.aio server (floor)")
    for heading in (
        "encoder",
        "traffic",
        "in flight",
        "limit",
        "floor",
        "polyhead",
        "",
        "× limit",
        "× floor",
    ):
        table.add_column(heading)
    for heading in ("p50 ms", "p99 ms", "client cores", "server cores", "errors"):
        table.add_column(heading)
    for cell in cells:
        single = cell.in_flight == 1
        table.add_row(
            cell.encoder,
            cell.traffic,
            "open" if cell.in_flight is None else str(cell.in_flight),
            *(
                f"{value:,.2f}" if single else f"{value:,.0f}"
                for value in (cell.limit, cell.floor, cell.polyhead)
            ),
            "ms" if single else "seq/s",
            f"{cell.of_limit:.2f}",
            f"{cell.of_floor:.2f}",
            f"{cell.p50_ms:.2f}",
            f"{cell.p99_ms:.2f}",
            f"{cell.client_cores:.2f}",
            f"{cell.server_cores:.2f}",
            str(cell.errors),
        )
    console.print(table)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/serving.json"))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measured cell")
    parser.add_argument("--encoders", nargs="+", default=[encoder.name for encoder in ENCODERS])
    arguments, serve_arguments = parser.parse_known_args()
    chosen = [encoder for encoder in ENCODERS if encoder.name in arguments.encoders]
    with Progress(console=console) as progress:
        task = progress.add_task("exporting", total=len(chosen))
        export_missing(chosen, arguments.models)
        with polyhead_server(arguments.models, serve_arguments) as served:
            bench = Bench(served.address, served.process, arguments.seconds)
            for encoder in chosen:
                progress.update(task, description=encoder.name)
                measure(encoder, bench, arguments.models)
                progress.advance(task)
            health = measure_health(bench) if "bench-384" in arguments.encoders else {}
    show(bench.cells)
    if health:
        table = Table("health checks", "p50 ms", "p99 ms")
        for name, row in (("idle", "idle"), ("beside two streams of 16 MiB replies", "beside")):
            table.add_row(name, f"{health[f'{row}_p50_ms']:.1f}", f"{health[f'{row}_p99_ms']:.1f}")
        console.print(table)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "fingerprint": fingerprint(),
        "health": health,
        "cells": [
            asdict(cell) | {"of_limit": cell.of_limit, "of_floor": cell.of_floor} for cell in bench.cells
        ],
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"{arguments.out}; ratios only compare within this run")


if __name__ == "__main__":
    main()
