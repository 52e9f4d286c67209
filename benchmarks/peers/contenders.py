"""Servers as the load generator sees them, and whether their answers are right."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil

from benchmarks.encoders import BenchEncoder, infer_request, sequences
from benchmarks.load_generator import channel_to, unary
from benchmarks.peers.graph import encode, open_graph
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

_START_SECONDS = 120.0
AT_ONCE = 32
"""Requests at once whose answers are checked, so that servers join them into batches."""
_TOLERANCE = 1e-4


class PeerError(Exception):
    """A server cannot take part."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server."""

    name: str
    address: str
    process: psutil.Process | None = None
    """None if its CPU time does not matter."""
    log: Path | None = None
    suffix: str = ""
    """What the names of its models add to the encoder's."""

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far by its process and all below."""
        if self.process is None:
            return 0.0
        seconds = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds

    def requests(self, encoder: BenchEncoder, lengths: Sequence[int]) -> list[bytes]:
        """Return requests of one sequence, the same for every server but for the model's name."""
        return [
            infer_request(encoder.name + self.suffix, {"x": x[None]}, {"output": None})
            for x in sequences(encoder, lengths)
        ]

    def version(self) -> str:
        """Return what it says of itself."""
        with grpc.insecure_channel(self.address) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                RPCS["ServerMetadata"].path
            )
            reply = pb.ServerMetadataResponse.FromString(call(b"", timeout=30))
        return f"{reply.name} {reply.version}"

    def check(self, encoder: BenchEncoder, graph: Path, lengths: Sequence[int] = ()) -> None:
        """Wait until it answers, and compare the answers with onnxruntime's own.

        Args:
            encoder: The encoder.
            graph: Its fast graph.
            lengths: T of each request; by default they are equal.

        Raises:
            PeerError: It does not answer in time, or wrongly.
        """
        lengths = lengths or [encoder.tokens] * AT_ONCE
        session = open_graph(graph, 0)
        expected = [encode(session, x[None]) for x in sequences(encoder, lengths)]
        replies = asyncio.run(self.answers(self.requests(encoder, lengths)))
        for reply, output in zip(replies, expected, strict=True):
            values = np.frombuffer(reply.raw_output_contents[0], np.float32)
            worst = np.abs(values - output.ravel()).max() if values.size == output.size else np.inf
            if not worst <= _TOLERANCE:
                raise PeerError(
                    f"{self.name} must answer {encoder.name} as onnxruntime does, but differs by {worst:g}"
                )

    async def answers(self, requests: Sequence[bytes]) -> list[pb.ModelInferResponse]:
        """Return the replies to requests sent at once, when it is ready.

        Raises:
            PeerError: It does not answer in time.
        """
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                async with channel_to(self.address) as channel:
                    replies = await asyncio.gather(*map(unary(channel), requests))
                return [pb.ModelInferResponse.FromString(reply) for reply in replies]
            except grpc.aio.AioRpcError as error:
                ended = self.process is not None and self.process.status() == psutil.STATUS_ZOMBIE
                if ended or time.monotonic() > end:
                    see = f"; see {self.log}" if self.log else ""
                    raise PeerError(f"{self.name} does not answer: {error.details()}{see}") from error
                await asyncio.sleep(0.5)
