"""The soak's callers: well-behaved ones, wrong ones, ones that leave, and ones that are killed."""

import asyncio
import contextlib
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from benchmarks.generator import HEALTH, channel_to, stream, unary
from benchmarks.soak.callers import command
from benchmarks.soak.requests import (
    Arrays,
    GoodRequest,
    SoakEncoders,
    all_invalid,
    all_valid,
    outputs_of,
    valid,
)
from polyhead_proto import messages as pb

TOLERANCE = 1e-5
"""How much a reply may differ from a quiet server's."""
CALL_SECONDS = 60.0
"""A call that takes longer is stuck."""
_KILL_EVERY_SECONDS = 8.0
_REJECTED = "rejected as it must be"


@dataclass(frozen=True)
class Kind:
    """A kind of traffic."""

    weight: float
    """Its share of the calls, in percent."""
    expected: frozenset[str] = frozenset({"OK"})
    """How its calls may end."""


_LEAVES = frozenset({"OK", "CANCELLED"})
_KILLED = "killed client"
KINDS = {
    "unary": Kind(45),
    "attention": Kind(9),
    "stream": Kind(6),
    "parts": Kind(4),
    "slow reader": Kind(0.5),
    "bad": Kind(10, frozenset({_REJECTED})),
    "health": Kind(10),
    "late": Kind(6, frozenset({"OK", "DEADLINE_EXCEEDED", "UNAVAILABLE"})),
    "cancelled": Kind(6, _LEAVES),
    "reader that leaves": Kind(1.5, frozenset({"CANCELLED"})),
    "closed channel": Kind(2, _LEAVES),
    # Processes of their own that end with SIGKILL, one every few seconds.
    _KILLED: Kind(0, frozenset({"killed"})),
}


class Traffic:
    """Send calls, check the replies, and count.

    Args:
        address: The server's.
        encoders: What it serves.
        rng: Makes every random decision.
    """

    def __init__(self, address: str, encoders: SoakEncoders, rng: random.Random) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """Calls by kind and by how they ended."""
        self.succeeded: Counter[str] = Counter()
        """Requests that succeeded, by model."""
        self.failed: Counter[tuple[str, str]] = Counter()
        """Requests that were rejected, by model and status."""
        self.sequences: Counter[str] = Counter()
        """Sequences of the requests that succeeded, by model."""
        self.begun = self.ended_well = 0
        """Requests to the abandoned model, and those of them whose reply arrived."""
        self.exact = self.near = 0
        """Replies that equal the quiet server's, to the bit or nearly."""
        self.worst = 0.0
        """The largest difference from them."""
        self.abandoned = encoders.abandoned.name
        self._address = address
        self._rng = rng
        self._valid, self._invalid = all_valid(encoders), all_invalid(encoders)
        self._leaving = valid(encoders.abandoned, [16, 40, 64, 100])
        (self._long,) = valid(encoders.abandoned, [240], attention=[0, 1], parts=True)
        self._channels = [channel_to(address) for _ in range(4)]
        self._send: dict[str, Callable[[str], Awaitable[None]]] = {
            "unary": self._unary,
            "attention": self._unary,
            "stream": self._stream,
            "parts": self._parts,
            "slow reader": self._parts,
            "bad": self._rejected,
            "health": self._health,
            "late": self._late,
            "cancelled": self._cancelled,
            "reader that leaves": self._reader_that_leaves,
            "closed channel": self._closed_channel,
        }

    async def learn(self) -> None:
        """Ask for every reply once, one after the other."""
        for request in (each for requests in self._valid.values() for each in requests):
            request.replies.extend([reply async for reply in self._replies(request)])
            self._count_success(request)

    def kinds(self) -> Iterator[str]:
        """Yield the kind of each call: every kind once, however short the run, then as drawn by weight."""
        weights = {name: kind.weight for name, kind in KINDS.items() if kind.weight}
        yield from weights
        while True:
            yield from self._rng.choices(list(weights), list(weights.values()))

    async def send(self, kind: str) -> None:
        """Send one call of a kind, and count how it ends."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._send[kind](kind)
        except TimeoutError:
            self.counts[kind, "STUCK"] += 1
        except grpc.aio.AioRpcError as error:
            self.counts[kind, error.code().name] += 1

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    @property
    def _channel(self) -> grpc.aio.Channel:
        return self._rng.choice(self._channels)

    # ---- Well-behaved callers ----------------------------------------------------------------------

    async def _unary(self, kind: str) -> None:
        request = self._rng.choice(self._valid[kind])
        self._check(kind, request, [reply async for reply in self._replies(request)])

    async def _parts(self, kind: str) -> None:
        request, replies = self._rng.choice(self._valid[kind]), []
        async for reply in self._replies(request):
            replies.append(reply)
            await asyncio.sleep(0.15 if kind == "slow reader" else 0)
        self._check(kind, request, replies)

    async def _stream(self, kind: str) -> None:
        """Send two valid requests and an invalid one between them; replies come in order."""
        first, last = self._rng.choices(self._valid["unary"], k=2)
        wrong = self._rng.choice([each for each in self._invalid if each.model])
        payloads = [first.payload, wrong.payload, last.payload]
        replies = [data async for data in stream(self._channel)(iter(payloads))]
        one, error, other = map(pb.ModelStreamInferResponse.FromString, replies)
        self._check(kind, first, [outputs_of(one.infer_response)])
        if not error.error_message.startswith(wrong.code.name):
            self.counts[kind, "WRONG"] += 1
        self.failed[wrong.model, wrong.code.name] += 1
        self._check(kind, last, [outputs_of(other.infer_response)])

    async def _health(self, kind: str) -> None:
        data = await unary(self._channel, HEALTH)(b"")
        self.counts[kind, "OK" if data == b"\x08\x01" else "WRONG"] += 1

    async def _replies(self, request: GoodRequest) -> AsyncIterator[Arrays]:
        """Send a request; yield the outputs of each message of the reply."""
        if not request.parts:
            data = await unary(self._channel)(request.payload)
            yield outputs_of(pb.ModelInferResponse.FromString(data))
            return
        async for data in stream(self._channel)(iter([request.payload])):
            yield outputs_of(pb.ModelStreamInferResponse.FromString(data).infer_response)

    def _check(self, kind: str, request: GoodRequest, replies: list[Arrays]) -> None:
        """Compare a reply with the quiet server's, and count it."""
        self._count_success(request)
        difference = _difference(replies, request.replies)
        self.worst = max(self.worst, difference)
        if difference == 0:
            self.exact += 1
        else:
            self.near += 1
        self.counts[kind, "OK" if difference <= TOLERANCE else "WRONG"] += 1

    def _count_success(self, request: GoodRequest) -> None:
        self.succeeded[request.model] += 1
        self.sequences[request.model] += request.sequences

    # ---- Callers with invalid requests -------------------------------------------------------------

    async def _rejected(self, kind: str) -> None:
        request = self._rng.choice(self._invalid)
        code = await unary(self._channel)(request.payload).code()
        self.failed[request.model, request.code.name] += 1
        self.counts[kind, _REJECTED if code is request.code else code.name] += 1

    # ---- Callers that leave: only they call their model --------------------------------------------

    async def _late(self, kind: str) -> None:
        """Call with a deadline that often passes."""
        timeout = self._rng.uniform(0.001, 0.03)
        request = self._rng.choice(self._leaving)
        await self._leave(kind, unary(self._channel)(request.payload, timeout=timeout))

    async def _cancelled(self, kind: str) -> None:
        """Cancel a call after a while."""
        call = unary(self._channel)(self._rng.choice(self._leaving).payload)
        ending = asyncio.ensure_future(self._leave(kind, call))
        await asyncio.sleep(self._rng.uniform(0, 0.02))
        call.cancel()
        await ending

    async def _reader_that_leaves(self, kind: str) -> None:
        """Read the first part of a reply, wait, and cancel."""
        call = stream(self._channel)(iter([self._long.payload]))
        self.begun += 1
        async for _ in call:
            await asyncio.sleep(self._rng.uniform(0, 2))
            break
        call.cancel()
        self.counts[kind, (await call.code()).name] += 1

    async def _closed_channel(self, kind: str) -> None:
        """Close a connection while several calls are in flight."""
        channel = channel_to(self._address)
        calls = [unary(channel)(request.payload) for request in self._leaving]
        endings = [asyncio.ensure_future(self._leave(kind, call)) for call in calls]
        await asyncio.sleep(self._rng.uniform(0, 0.05))
        await channel.close()
        await asyncio.gather(*endings)

    async def _leave(self, kind: str, call: Any) -> None:
        """Count how a call of the abandoned model ends."""
        self.begun += 1
        code = (await call.code()).name
        self.counts[kind, code] += 1
        self.ended_well += code == "OK"

    # ---- Callers that are killed -------------------------------------------------------------------

    async def kill_clients(self) -> None:
        """Start clients, and kill each in the middle of its calls, until cancelled."""
        while True:
            process = await asyncio.create_subprocess_exec(
                *command(self._address, "doomed", 3), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            printed = b""
            try:
                stdin, stdout = process.stdin, process.stdout
                if stdin is None or stdout is None:
                    raise RuntimeError("the client has no pipes")
                stdin.write(self._rng.choice(self._leaving).payload)
                stdin.close()
                printed += await stdout.readexactly(1)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0, 2)):
                        while True:
                            printed += await stdout.readexactly(1)
            except asyncio.IncompleteReadError:
                self.counts[_KILLED, "ended by itself"] += 1
            finally:
                process.kill()
                printed += await process.stdout.read() if process.stdout else b""
                await process.wait()
                self.begun += printed.count(b".")
                self.ended_well += printed.count(b"+")
                self.counts[_KILLED, "killed"] += 1
            await asyncio.sleep(_KILL_EVERY_SECONDS)


def _difference(replies: list[Arrays], expected: list[Arrays]) -> float:
    """Return the largest difference of two replies; infinite where their shapes differ."""
    ours, theirs = [each for part in replies for each in part], [each for part in expected for each in part]
    if [each.shape for each in ours] != [each.shape for each in theirs]:
        return float("inf")
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, theirs, strict=True))
