"""Hostile connections: what they send is what gRPC reads, and an attack says what it did."""

import asyncio
import os
from typing import Any

import grpc
import psutil
import pytest

from benchmarks.hostile import LARGE, MANY, Bomb, HostileConnections, attack

BOMB = Bomb(value_bytes=300, references=50)


class Seen(grpc.GenericRpcHandler):
    """Notes the metadata of calls, by name and the length of the value, and answers none."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[list[tuple[str, int]]] = asyncio.Queue()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        """Notes a call."""
        metadata: Any = handler_call_details.invocation_metadata
        self.calls.put_nowait([(key, len(value)) for key, value in metadata])


async def bare(options: Any = ()) -> tuple[grpc.aio.Server, str, Seen]:
    """A server without methods, its address, and what it has seen."""
    seen = Seen()
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((seen,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}", seen


@pytest.mark.parametrize(("bomb", "count"), [(BOMB, 50), (LARGE, 3_000), (MANY, 16_000)])
def test_every_call_but_the_first_refers_to_the_header_of_the_first(bomb: Bomb, count: int) -> None:
    async def run() -> None:
        server, address, seen = await bare([("grpc.max_concurrent_streams", 4)])
        done = asyncio.Event()
        hostile = HostileConnections(address, count=1, bomb=bomb, lasting=lambda: wait_for(done))
        attacking = asyncio.create_task(hostile.run())
        calls = [await seen.calls.get() for _ in range(4)]
        attacking.cancel()
        await asyncio.wait([attacking])
        await server.stop(None)
        header = ("x", bomb.value_bytes)
        assert sorted(calls, key=len) == [[header], *[[header] * count] * 3]
        assert hostile.calls == 4

    asyncio.run(run())


async def wait_for(event: asyncio.Event) -> None:
    """Waits for an event."""
    await event.wait()


def test_an_attack_counts_honest_calls_and_those_that_failed() -> None:
    async def run() -> None:
        server, address, seen = await bare()
        answers = iter([None, RuntimeError("no answer")])

        async def call() -> None:
            if error := next(answers, None):
                raise error

        outcome = await attack(
            address, call, psutil.Process(os.getpid()), connections=2, bomb=BOMB, seconds=1, waiting=True
        )
        await server.stop(None)
        assert outcome.failed == ["RuntimeError('no answer')"]
        assert outcome.honest_calls >= 2
        assert outcome.hostile_calls >= 2 * 99
        assert outcome.grown_mib >= 0
        assert seen.calls.qsize()

    asyncio.run(run())
