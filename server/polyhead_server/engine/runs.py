"""How runs of a session get their inputs to the device and their outputs back."""

from collections.abc import Sequence
from typing import Protocol

import onnxruntime as ort

from polyhead_server.devices import CPU, Device
from polyhead_server.engine.bound import BoundRuns
from polyhead_server.engine.captured import CapturedRuns
from polyhead_server.engine.cuda_memory import CudaMemory
from polyhead_server.engine.runner import Arrays
from polyhead_server.signature import Signature


class Runs(Protocol):
    """Runs of one session."""

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        """Runs once. Safe from several threads at once; raises whatever onnxruntime does."""

    def serve(self) -> None:
        """From now on runs are callers'; those before were to measure."""

    def check(self) -> None:
        """Asks the device how it is.

        Raises:
            RuntimeError: Something that it was given has failed; in CUDA's words.
        """

    def close(self) -> None:
        """Gives back what it holds; no run is in progress, and none follows. May block for some moments."""


class PlainRuns:
    """Runs of a session on the CPU: it reads the callers' arrays, and makes those that it returns.

    Args:
        session: The session.
    """

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        """Runs once."""
        values = self._session.run(list(outputs), dict(feeds), options)
        return dict(zip(outputs, values, strict=True))

    def serve(self) -> None:
        """Nothing changes."""

    def check(self) -> None:
        """A processor that fails takes the process with it."""

    def close(self) -> None:
        """Drops the session."""
        self._session = None


def runs_of(session: ort.InferenceSession, signature: Signature, device: Device) -> Runs:
    """How a session on this device is run."""
    if device.provider == CPU:
        return PlainRuns(session)
    memory = CudaMemory(device.card)
    return (CapturedRuns if device.graphs else BoundRuns)(session, signature, memory)
