"""Waiting for what threads and other processes do."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 240.0


def until(condition: Callable[[], object]) -> None:
    """Returns when something is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


async def reached(condition: Callable[[], object]) -> None:
    """Returns when something is so, and lets the event loop run meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what changes it is not on this event loop
            await asyncio.sleep(0.005)
