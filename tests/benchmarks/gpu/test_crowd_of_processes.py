"""Load generators that fail, and what becomes of the next load."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest

from gpu.crowd import Crowd, GeneratorError, crowd
from gpu.generator import Order

ORDER = Order(
    address="127.0.0.1:1",
    model="base",
    vocabulary=50,
    types=False,
    batch=2,
    tokens=5,
    outputs=("pooled",),
    in_flight=2,
    seconds=0.1,
)
_GENERATOR = """
import json, sys
for line in sys.stdin:
    print("ready", flush=True)
    sys.stdin.readline()
    {answer}
"""
_ANSWER = '{"replies_per_second": 10.0, "latencies_ms": [1.0], "errors": 0, "cores": 0.5}'


def generator(answer: str) -> "subprocess.Popen[str]":
    script = _GENERATOR.replace("{answer}", answer)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def starts(*answers: str) -> Callable[[], "subprocess.Popen[str]"]:
    """Generators, one after the other, that do this once they are told to go."""
    left = iter(answers)
    return lambda: generator(next(left))


FINE = f"print({_ANSWER!r}, flush=True)"
FAILS = """print('{"error": "AioRpcError: no"}', flush=True)"""


def test_what_one_could_not_do_is_said_and_the_next_load_works() -> None:
    once = f"{FAILS} if ORDERS == 1 else {FINE}".replace("ORDERS", "json.loads(line)['batch']")
    crowd = Crowd(starts(once, FINE), 2)
    try:
        with pytest.raises(GeneratorError, match="1 of 2 load generators failed: AioRpcError: no"):
            crowd.load(replace(ORDER, batch=1))

        assert crowd.load(ORDER).replies == 2
    finally:
        crowd.close()


def test_one_that_died_is_started_again() -> None:
    crowd = Crowd(starts("sys.exit(1)", FINE, FINE, FINE), 2)
    try:
        with pytest.raises(GeneratorError, match="ended"):
            crowd.load(ORDER)

        assert crowd.load(ORDER).sequences_per_second == pytest.approx(40.0)
    finally:
        crowd.close()


def test_calls_that_a_server_refuses_are_said_and_not_died_of() -> None:
    server = grpc.server(ThreadPoolExecutor(1))  # knows no method
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with crowd(1) as callers:
            for _ in range(2):
                with pytest.raises(GeneratorError, match="failed: AioRpcError"):
                    callers.load(replace(ORDER, address=f"127.0.0.1:{port}"))
    finally:
        server.stop(None)
