"""What a server holds alone: four connections whose headers expand in HPACK (32 are a proxy's to hold).

The attack goes on when an honest call has come through, so that it is the same on a busy machine.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.servers import ServerProcess
from tests.waiting import PATIENCE

from benchmarks.hostile import LARGE, MANY, Bomb, attack
from polyhead_client import AsyncClient

X = np.ones((3, 16), np.float32)


@pytest.fixture
def server(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    # glibc has an arena for each thread. They may keep as much freed memory as the server holds.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    flags = ["--device", "cpu", "--threads", "1", "--port", "0", "--http-port", "off"]
    one = ServerProcess("--models", str(repository), *flags)
    yield one
    one.close()


# gRPC's core holds 2.4 MiB of a call with 16,000 headers until Python has taken it: 312 MiB of four
# connections, and as much again of those that are renewed before. Were there no limit of 32 calls a
# connection, the attack would open 99: 966 MiB of four.
@pytest.mark.parametrize(("bomb", "mib"), [(LARGE, 400), (MANY, 800)], ids=["large header", "many headers"])
def test_four_hostile_connections_end_no_honest_call(server: ServerProcess, bomb: Bomb, mib: int) -> None:
    address = server.until(r"serving .* on (\S+) with")[1]

    async def run() -> None:
        async with AsyncClient(address, timeout=PATIENCE) as client:

            async def honest() -> None:
                await client.encode(X, model="tiny")

            await honest()
            process = psutil.Process(server.process.pid)
            outcome = await attack(address, honest, process, connections=4, bomb=bomb, waiting=True)
        assert outcome.failed == []
        assert outcome.honest_calls > 1
        assert outcome.hostile_calls >= 4 * 32
        assert outcome.grown_mib <= mib

    asyncio.run(run())
