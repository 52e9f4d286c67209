"""The first calls to a server that has just become ready."""

import asyncio
from typing import Any

import grpc
import pytest

from load import warm_up


class Answers:
    """A call that fails with these codes, one after the other, and then works."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)
        self.requests: list[bytes] = []

    async def __call__(self, request: bytes) -> bytes:
        self.requests.append(request)
        if self._codes:
            raise grpc.aio.AioRpcError(self._codes.pop(0), grpc.aio.Metadata(), grpc.aio.Metadata())
        return b""


def warmed(call: Any, seconds: float) -> None:
    asyncio.run(warm_up(call, [b"one", b"two"], seconds=seconds))


def test_a_call_that_comes_too_early_is_made_again() -> None:
    call = Answers(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

    warmed(call, seconds=60)

    assert call.requests == [b"one", b"one", b"one", b"two"]


@pytest.mark.parametrize(
    ("code", "seconds"), [(grpc.StatusCode.INVALID_ARGUMENT, 60.0), (grpc.StatusCode.UNAVAILABLE, -1.0)]
)
def test_what_fails_otherwise_or_for_too_long_is_raised(code: grpc.StatusCode, seconds: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        warmed(Answers(code), seconds=seconds)
