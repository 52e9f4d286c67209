"""Servers as the load generator sees them, and whether their answers are right."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import psutil

from benchmarks.encoders import BenchEncoder, infer_request, sequences
from benchmarks.generator import Send, channel_to, closed_loop, unary, unary_calls
from benchmarks.graph import encode, open_graph
from benchmarks.rounds import Sample
from polyhead_load.sweep.server import cpu_seconds, free_port, running, wait_until_ready
from polyhead_proto import messages as pb

POLYHEAD = "polyhead"
AT_ONCE = 32
"""Requests at once whose answers are checked, so that servers join them into batches."""
_PROBES = 8
"""Connections per worker that must find one that is ready."""
_TOLERANCE = 1e-4
_ROOT = Path(__file__).parent.parent
_PROGRAM = str(Path(sys.executable).with_name("polyhead"))


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

    def load_closed(
        self, requests: Sequence[bytes], in_flight: int, seconds: float, per_call: int = 1
    ) -> Sample:
        """Keep so many requests in flight for a while, see `load`."""
        send = partial(closed_loop, partial(unary_calls, self.address), requests, in_flight=in_flight)
        return self.load(send, seconds, per_call)

    def requests(self, encoder: BenchEncoder, lengths: Sequence[int]) -> list[bytes]:
        """Return requests of one sequence, the same for every server but for the model's name."""
        return [
            infer_request(encoder.name + self.suffix, {"x": x[None]}, ["output"])
            for x in sequences(encoder, lengths)
        ]

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


@contextmanager
def polyhead(
    models: Path,
    flags: Sequence[str] = (),
    *,
    name: str = POLYHEAD,
    program: Sequence[str] = (_PROGRAM,),
    workers: int = 1,
    http: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Contender]:
    """Start a server of polyhead with metrics, wait until it is ready, and stop it at the end.

    Args:
        models: The model repository.
        flags: Flags of `polyhead serve`.
        name: What it is called.
        program: The command `polyhead`, perhaps of another environment.
        workers: How many workers the flags ask for: each must be ready.
        http: Whether it answers over HTTP.
        environment: Variables beyond this process's own.
    """
    port, http_port = free_port(), free_port()
    command = [*program, "serve", "--models", str(models), "--port", str(port)]
    command += ["--http-port", str(http_port), *(["--http"] * http), "--log-level", "warning", *flags]
    address, http_address = f"127.0.0.1:{port}", f"127.0.0.1:{http_port}"
    with running(command, environment=environment) as process:
        wait_until_ready(process, address, connections=1 if workers == 1 else _PROBES * workers)
        yield Contender(name=name, address=address, process=process, http=http_address)


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


def run_module(python: Path, module: str, *arguments: str | Path) -> None:
    """Run a module of the benchmarks in an environment, to its end.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-m", module, *arguments], env=environment, check=True)


@contextmanager
def echo_server() -> Iterator[Contender]:
    """Start the `grpc.aio` server that only echoes."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with running([sys.executable, "-m", "benchmarks.echo_server", str(port)]) as process:
        wait_until_ready(process, address)
        yield Contender(name="`grpc.aio` echo", address=address, process=process)
