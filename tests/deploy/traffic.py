"""Callers on this machine that keep a stack busy while something is done to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

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


class UntilRefused:
    """Threads with a bare channel each, which call until a call fails: nothing hides a lost request.

    Args:
        address: The server's.
        count: How many there are.
    """

    def __init__(self, address: str, count: int = 4) -> None:
        self.ended: list[tuple[str, str]] = []
        """Status and details with which each has ended."""
        self.replies: list[int] = []
        """The size of every answer."""
        self._answered = threading.Semaphore(0)
        # Large enough that some are always under way.
        x = np.random.default_rng(0).standard_normal((4, 512, 256), dtype=np.float32)
        self._request = pb.ModelInferRequest(
            model_name="teaching-h4",
            inputs=[{"name": "x", "datatype": "FP32", "shape": x.shape}],
            raw_input_contents=[x.tobytes()],
        ).SerializeToString()
        self._threads = [threading.Thread(target=self._run, args=(address,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, address: str) -> None:
        with grpc.insecure_channel(address, [("grpc.enable_retries", 0)]) as channel:
            method: Any = channel.unary_unary(RPCS["ModelInfer"].path)
            while True:
                try:
                    self.replies.append(len(method(self._request, timeout=60)))
                except grpc.RpcError as error:
                    self.ended.append((error.code().name, error.details() or ""))
                    return
                self._answered.release()

    def wait_for_answers(self, count: int) -> None:
        """Returns after so many more answers."""
        for _ in range(count):
            assert self._answered.acquire(timeout=120)

    def wait_until_ended(self) -> None:
        """Returns when every one of them has failed."""
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive()
