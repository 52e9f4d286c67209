"""Runs on the CPU: the arrays themselves are what onnxruntime reads and writes."""

from collections.abc import Sequence
from typing import Protocol

import onnxruntime as ort

from polyhead_server.engine.runner import Arrays


class Runs(Protocol):
    """How runs of a session get their inputs to the device and their outputs back."""

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        """Runs once. Safe from several threads at once; raises whatever onnxruntime does."""


class PlainRuns:
    """Runs of a session on the CPU."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        """Runs once."""
        values = self._session.run(list(outputs), dict(feeds), options)
        return dict(zip(outputs, values, strict=True))
