"""Callers on this machine that keep a stack busy while something is done to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tests.servers import Callers

from polyhead_client import Client, PolyheadError
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

TEXTS = ["A man is eating a piece of bread.", "Someone is having a meal."]


class Persistent:
    """Threads with a client each, which call until a call fails.

    Args:
        address: The server's.
        count: How many there are.
        patient: Whether the clients are.
    """

    def __init__(self, address: str, count: int = 4, *, patient: bool = False) -> None:
        self.failed: list[PolyheadError] = []
        """With what the client itself has given up."""
        self._stopping = threading.Event()
        self._answered = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, args=(address, patient)) for _ in range(count)]

    def _run(self, address: str, patient: bool) -> None:
        with Client(address, timeout=120, patient=patient) as client:
            while not self._stopping.is_set():
                try:
                    client.encode(TEXTS, model="minilm")
                except PolyheadError as error:
                    self.failed.append(error)
                    return
                else:
                    self._answered.release()

    def wait_for_answers(self, count: int) -> None:
        """Returns after so many more answers."""
        for _ in range(count):
            assert self._answered.acquire(timeout=120)

    @contextmanager
    def calling(self) -> Iterator["Persistent"]:
        """Calls until the end of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(180)


def call_until_refused(address: str, replies: list[int]) -> Callers:
    """Callers with a bare channel each: nothing hides a lost request.

    Args:
        address: The server's.
        replies: Gets the size of every answer.
    """
    # Large enough that some are always under way.
    x = np.random.default_rng(0).standard_normal((4, 512, 256), dtype=np.float32)
    request = pb.ModelInferRequest(
        model_name="teaching-h4",
        inputs=[{"name": "x", "datatype": "FP32", "shape": x.shape}],
        raw_input_contents=[x.tobytes()],
    ).SerializeToString()

    def call(channel: grpc.Channel) -> None:
        method: Any = channel.unary_unary(RPCS["ModelInfer"].path)
        replies.append(len(method(request, timeout=60)))

    return Callers(address, call, count=4, options=[("grpc.enable_retries", 0)])
