"""The callers of the soak: those who behave, those who err, those who leave, and those who are killed."""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from callers import SCRIPT
from load import HEALTH, channel_to, stream, unary
from payloads import ABANDONED, Arrays, Bad, Good, bad, every_good, good, outputs_of
from polyhead_proto import messages as pb

OK = grpc.StatusCode.OK
TOLERANCE = 1e-5
LIMIT_SECONDS = 60.0
"""Whoever has no answer by then is stuck."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of traffic."""

    weight: float
    """Its share of what is sent, in percent."""
    expected: frozenset[str]
    """How its calls may end."""


_LEAVES = frozenset({"OK", "CANCELLED"})
KILLED = "killed client"
KINDS = {
    "unary": Kind(weight=45, expected=frozenset({"OK"})),
    "attention": Kind(weight=9, expected=frozenset({"OK"})),
    "stream": Kind(weight=6, expected=frozenset({"OK"})),
    "parts": Kind(weight=4, expected=frozenset({"OK"})),
    "slow reader": Kind(weight=0.5, expected=frozenset({"OK"})),
    "bad": Kind(weight=10, expected=frozenset({"refused as it must be"})),
    "health": Kind(weight=10, expected=frozenset({"OK"})),
    "late": Kind(weight=6, expected=frozenset({"OK", "DEADLINE_EXCEEDED", "UNAVAILABLE"})),
    "cancelled": Kind(weight=6, expected=_LEAVES),
    "reader that leaves": Kind(weight=1.5, expected=frozenset({"CANCELLED"})),
    "closed channel": Kind(weight=2, expected=_LEAVES),
    # Processes of their own that end with SIGKILL, one every few seconds.
    KILLED: Kind(weight=0, expected=frozenset({"killed"})),
}


class Traffic:
    """Sends, checks and counts.

    Args:
        address: The server's.
        dice: Decides everything that is random.
    """

    def __init__(self, address: str, dice: random.Random) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """Calls by kind and by how they ended."""
        self.succeeded: Counter[str] = Counter()
        """Requests that were answered, by model."""
        self.failed: Counter[tuple[str, str]] = Counter()
        """Requests that were refused, by model and status."""
        self.sequences: Counter[str] = Counter()
        """Sequences of the requests that were answered, by model."""
        self.begun = self.ended_well = 0
        """Requests for the abandoned model, and those of them whose answer arrived."""
        self.exact = self.near = 0
        """Replies that are the quiet server's, to the bit or nearly."""
        self.worst = 0.0
        """The largest difference seen."""
        self.awaited = 0
        """Calls that have not ended."""
        self._address = address
        self._dice = dice
        self._good, self._bad = every_good(), bad()
        self._leaving = good(ABANDONED, [16, 40, 64, 100])
        self._long = good(ABANDONED, [240], attention=[0, 1], parts=True)[0]
        self._channels = [channel_to(address) for _ in range(4)]
        self._send: dict[str, Callable[[], Awaitable[None]]] = {
            "unary": lambda: self._unary("unary"),
            "attention": lambda: self._unary("attention"),
            "stream": self._in_stream,
            "parts": lambda: self._in_parts("parts", pause=0.0),
            "slow reader": lambda: self._in_parts("slow reader", pause=0.15),
            "bad": self._refused,
            "health": self._health,
            "late": self._late,
            "cancelled": self._cancelled,
            "reader that leaves": self._reader_that_leaves,
            "closed channel": self._closed_channel,
        }

    async def learn(self) -> None:
        """Ask for every reply once, one after the other."""
        for requests in self._good.values():
            for request in requests:
                if request.parts:
                    call = stream(self._channel)(iter([request.payload]))
                    async for data in call:
                        request.replies.append(_part(data))
                else:
                    data = await unary(self._channel)(request.payload)
                    request.replies.append(outputs_of(pb.ModelInferResponse.FromString(data)))
                self._count_success(request)

    async def send(self, kind: str) -> None:
        """Send one of a kind, and count how it ended."""
        self.awaited += 1
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._send[kind]()
        except TimeoutError:
            self.counts[kind, "STUCK"] += 1
        except grpc.aio.AioRpcError as error:
            self.counts[kind, error.code().name] += 1
        finally:
            self.awaited -= 1

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    @property
    def _channel(self) -> grpc.aio.Channel:
        return self._dice.choice(self._channels)

    # ---- Well-behaved callers ----------------------------------------------------------------------

    async def _unary(self, kind: str) -> None:
        request = self._dice.choice(self._good[kind])
        data = await unary(self._channel)(request.payload)
        self._check(kind, request, [outputs_of(pb.ModelInferResponse.FromString(data))])

    async def _in_stream(self) -> None:
        """Send two good requests and a bad one between them, answered in their order."""
        first, last = self._dice.choices(self._good["unary"], k=2)
        wrong = self._dice.choice([each for each in self._bad if each.model])
        payloads = [first.payload, wrong.payload, last.payload]
        replies = [data async for data in stream(self._channel)(iter(payloads))]
        one, error, other = map(pb.ModelStreamInferResponse.FromString, replies)
        self._check("stream", first, [outputs_of(one.infer_response)])
        if not error.error_message.startswith(wrong.code.name):
            self.counts["stream", "WRONG"] += 1
        self.failed[wrong.model, wrong.code.name] += 1
        self._check("stream", last, [outputs_of(other.infer_response)])

    async def _in_parts(self, kind: str, *, pause: float) -> None:
        request = self._dice.choice(self._good[kind])
        replies = []
        async for data in stream(self._channel)(iter([request.payload])):
            replies.append(_part(data))
            await asyncio.sleep(pause)
        self._check(kind, request, replies)

    async def _health(self) -> None:
        data = await unary(self._channel, HEALTH)(b"")
        self.counts["health", "OK" if data == b"\x08\x01" else "WRONG"] += 1

    def _check(self, kind: str, request: Good, replies: list[Arrays]) -> None:
        """Compare a reply with the quiet server's, and count it."""
        self._count_success(request)
        difference = _difference(replies, request.replies)
        self.worst = max(self.worst, difference)
        if difference == 0:
            self.exact += 1
        else:
            self.near += 1
        self.counts[kind, "OK" if difference <= TOLERANCE else "WRONG"] += 1

    def _count_success(self, request: Good) -> None:
        self.succeeded[request.model] += 1
        self.sequences[request.model] += request.sequences

    # ---- Callers with wrong requests ---------------------------------------------------------------

    async def _refused(self) -> None:
        request: Bad = self._dice.choice(self._bad)
        call = unary(self._channel)(request.payload)
        code = await call.code()
        self.failed[request.model, request.code.name] += 1
        self.counts["bad", "refused as it must be" if code is request.code else code.name] += 1

    # ---- Callers who leave: their model serves only them -------------------------------------------

    async def _late(self) -> None:
        """Call with a deadline that often passes."""
        timeout = self._dice.uniform(0.001, 0.03)
        call = unary(self._channel)(self._dice.choice(self._leaving).payload, timeout=timeout)
        self._count_left("late", await self._code(call))

    async def _cancelled(self) -> None:
        call = unary(self._channel)(self._dice.choice(self._leaving).payload)
        ending = asyncio.ensure_future(self._code(call))
        await asyncio.sleep(self._dice.uniform(0, 0.02))
        call.cancel()
        self._count_left("cancelled", await ending)

    async def _reader_that_leaves(self) -> None:
        """Read the first part, wait, and cancel."""
        call = stream(self._channel)(iter([self._long.payload]))
        self.begun += 1
        async for _ in call:
            await asyncio.sleep(self._dice.uniform(0, 2))
            break
        call.cancel()
        self.counts["reader that leaves", (await call.code()).name] += 1

    async def _closed_channel(self) -> None:
        """Close a connection while several calls are in flight."""
        channel = channel_to(self._address)
        calls = [unary(channel)(request.payload) for request in self._leaving]
        endings = [asyncio.ensure_future(self._code(call)) for call in calls]
        await asyncio.sleep(self._dice.uniform(0, 0.05))
        await channel.close()
        for ending in endings:
            self._count_left("closed channel", await ending)

    async def _code(self, call: Any) -> str:
        self.begun += 1
        return str((await call.code()).name)

    def _count_left(self, kind: str, code: str) -> None:
        self.counts[kind, code] += 1
        self.ended_well += code == "OK"

    # ---- Callers who are killed --------------------------------------------------------------------

    async def kill_clients(self, every_seconds: float) -> None:
        """Start clients and kill each in the middle of its calls, until cancelled."""
        while True:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, SCRIPT, "--address", self._address, "--kind", "doomed", "--callers", "3"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            said = b""
            try:
                stdin, stdout = process.stdin, process.stdout
                if stdin is None or stdout is None:
                    raise RuntimeError("the client has no pipes")
                stdin.write(self._dice.choice(self._leaving).payload)
                stdin.close()
                said += await stdout.readexactly(1)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._dice.uniform(0, 2)):
                        while True:
                            said += await stdout.readexactly(1)
            except asyncio.IncompleteReadError:
                self.counts[KILLED, "ended by itself"] += 1
            finally:
                process.kill()
                said += await process.stdout.read() if process.stdout else b""
                await process.wait()
                self.begun += said.count(b".")
                self.ended_well += said.count(b"+")
                self.counts[KILLED, "killed"] += 1
            await asyncio.sleep(every_seconds)


def _part(data: bytes) -> Arrays:
    return outputs_of(pb.ModelStreamInferResponse.FromString(data).infer_response)


def _difference(replies: list[Arrays], expected: list[Arrays]) -> float:
    """Return the largest difference of two replies; infinite where their shapes differ."""
    ours, theirs = [each for part in replies for each in part], [each for part in expected for each in part]
    if [each.shape for each in ours] != [each.shape for each in theirs]:
        return float("inf")
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, theirs, strict=True))
