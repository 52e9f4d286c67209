"""Servers as the load generator sees them, and whether their answers are right."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil

from benchmarks.encoders import BenchEncoder, infer_request, sequences
from benchmarks.generator import Send, channel_to, unary
from benchmarks.graph import encode, open_graph
from benchmarks.machine import cpu_seconds
from benchmarks.rounds import Sample
from polyhead_load.sweep.server import free_port, running
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

POLYHEAD = "polyhead"
AT_ONCE = 32
"""Requests at once whose answers are checked, so that servers join them into batches."""
_START_SECONDS = 600.0
_PROBES = 8
"""Connections per worker that must find one that is ready."""
_TOLERANCE = 1e-4
_ROOT = Path(__file__).parent.parent


class ContenderError(Exception):
    """A contender cannot take part."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server."""

    name: str
    address: str
    process: psutil.Process
    http: str = ""
    """Where it answers over HTTP; empty if it does not."""
    log: Path | None = None
    suffix: str = ""
    """What the names of its models add to the encoder's."""

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far by its process and all below."""
        return cpu_seconds(self.process)

    def load(self, send: Send, seconds: float, per_call: int = 1) -> Sample:
        """Send for a while, and for a fifth of it before, unmeasured: caches and clocks come up to speed.

        Args:
            send: A loop that lacks `seconds` and `server`; called twice.
            seconds: How long it sends.
            per_call: Sequences of each call.
        """
        asyncio.run(send(seconds=seconds / 5))
        return asyncio.run(send(seconds=seconds, server=self.cpu_seconds)).sample(per_call)

    def requests(self, encoder: BenchEncoder, lengths: Sequence[int]) -> list[bytes]:
        """Return requests of one sequence, the same for every server but for the model's name."""
        return [
            infer_request(encoder.name + self.suffix, {"x": x[None]}, ["output"])
            for x in sequences(encoder, lengths)
        ]

    def wait(self, connections: int = 1) -> None:
        """Wait until it is ready.

        Args:
            connections: How many in a row must find it ready. The system picks a worker for each connection;
                one that is ready says nothing of the others.

        Raises:
            ContenderError: It has ended, or is not ready in time.
        """
        end = time.monotonic() + _START_SECONDS
        while connections:
            if self._ready():
                connections -= 1
            elif self.process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > end:
                raise ContenderError(f"{self.name} is not ready" + (f"; see {self.log}" if self.log else ""))
            else:
                time.sleep(0.05)

    def check(self, encoder: BenchEncoder, graph: Path, lengths: Sequence[int] = ()) -> None:
        """Compare its answers with onnxruntime's own.

        Args:
            encoder: The encoder.
            graph: Its fast graph.
            lengths: T of each request; by default they are equal.

        Raises:
            ContenderError: It answers wrongly.
        """
        lengths = lengths or [encoder.tokens] * AT_ONCE
        session = open_graph(graph, 0)
        expected = [encode(session, x[None]) for x in sequences(encoder, lengths)]
        replies = asyncio.run(self.answers(self.requests(encoder, lengths)))
        for reply, output in zip(replies, expected, strict=True):
            values = np.frombuffer(reply.raw_output_contents[0], np.float32)
            worst = np.abs(values - output.ravel()).max() if values.size == output.size else np.inf
            if not worst <= _TOLERANCE:
                raise ContenderError(
                    f"{self.name} must answer {encoder.name} as onnxruntime does, was off by {worst}"
                )

    async def answers(self, requests: Sequence[bytes]) -> list[pb.ModelInferResponse]:
        """Return the replies to requests sent at once.

        Raises:
            ContenderError: It rejects one.
        """
        try:
            async with channel_to(self.address) as channel:
                replies = await asyncio.gather(*map(unary(channel), requests))
        except grpc.aio.AioRpcError as error:
            raise ContenderError(f"{self.name} does not answer: {error.details()}") from error
        return [pb.ModelInferResponse.FromString(reply) for reply in replies]

    def _ready(self) -> bool:
        try:
            return pb.ServerReadyResponse.FromString(self._ask("ServerReady")).ready
        except grpc.RpcError:
            return False

    def _ask(self, rpc: str) -> bytes:
        """Send an empty request on a connection of its own."""
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(RPCS[rpc].path)
            return call(b"", timeout=30)


@contextmanager
def polyhead(
    models: Path,
    flags: Sequence[str] = (),
    *,
    name: str = POLYHEAD,
    python: Path = Path(sys.executable),
    workers: int = 1,
    http: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Contender]:
    """Start a server of polyhead with metrics, wait until it is ready, and stop it at the end.

    Args:
        models: The model repository.
        flags: Flags of `polyhead serve`.
        name: What it is called.
        python: Of the environment whose polyhead serves.
        workers: How many workers the flags ask for: each must be ready.
        http: Whether it answers over HTTP.
        environment: Variables beyond this process's own.
    """
    port, http_port = free_port(), free_port()
    command = [str(python.with_name("polyhead")), "serve", "--models", str(models), "--port", str(port)]
    command += ["--http-port", str(http_port), *(["--http"] * http), "--log-level", "warning", *flags]
    with running(command, environment=environment) as process:
        contender = Contender(
            name=name, address=f"127.0.0.1:{port}", process=process, http=f"127.0.0.1:{http_port}"
        )
        contender.wait(1 if workers == 1 else _PROBES * workers)
        yield contender


def python_of(checkout: Path) -> Path:
    """Return the Python of the environment that a checkout has made for itself.

    Raises:
        ContenderError: It has made none, or one that serves another checkout.
    """
    python = checkout.absolute() / ".venv" / "bin" / "python"
    served = ""
    if python.exists():
        where = "import polyhead_server; print(polyhead_server.__file__)"
        served = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout
    if not Path(served).is_relative_to(checkout.resolve()):
        raise ContenderError(
            f"{checkout} must have an environment of its own (make -C {checkout} .venv/runtime), "
            f"had {served.strip() or 'none'}"
        )
    return python


def export_by(python: Path, models: Path, names: Sequence[str]) -> None:
    """Export encoders by the polyhead of an environment, unless they are in the model repository."""
    subprocess.run(
        [python, "-m", "benchmarks.encoders", models, *names],
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        check=True,
    )


@contextmanager
def echo_server() -> Iterator[Contender]:
    """Start the `grpc.aio` server that only echoes."""
    port = free_port()
    with running([sys.executable, "-m", "benchmarks.echo_server", str(port)]) as process:
        contender = Contender(name="`grpc.aio` echo", address=f"127.0.0.1:{port}", process=process)
        contender.wait()
        yield contender
