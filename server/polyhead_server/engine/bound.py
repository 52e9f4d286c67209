"""Runs on a device of its own memory: inputs and outputs are bound to buffers that are used again.

onnxruntime reads inputs from device memory and writes outputs to it; what is copied is what the caller sends
and asks for. Each run has a size out of few (see `buckets`): rows that pad it have length 0, and what is
padding is cut off what comes back.
"""

from collections import deque
from collections.abc import Sequence

import onnxruntime as ort

from polyhead_server.engine.buckets import bucket
from polyhead_server.engine.gate import GATE, Gate
from polyhead_server.engine.host_pool import HostPool
from polyhead_server.engine.lane import Lane
from polyhead_server.engine.memory import Memory
from polyhead_server.engine.runner import Arrays
from polyhead_server.signature import Signature

_KEPT_BYTES = 2**28
"""What a lane's buffers may keep for the next run; what larger ones took is given back at once."""


class BoundRuns:
    """Runs of a session whose inputs and outputs are in a device's memory.

    Args:
        session: The session.
        signature: What it takes and gives.
        memory: The device's.
        gate: Which captures of CUDA graphs, of other sessions, pass alone.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        signature: Signature,
        memory: Memory,
        *,
        gate: Gate = GATE,
    ) -> None:
        self._gate = gate
        self._session = session
        self._signature = signature
        self._memory = memory
        self._pool = HostPool(memory.allocate_host)
        self._lanes: deque[Lane] = deque()

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        """Runs once. As many lanes are made as runs have ever been at once."""
        with self._gate.together():
            return self._run(feeds, outputs, options)

    def serve(self) -> None:
        """Nothing changes: each run is as the one before."""

    def check(self) -> None:
        """Raises what the device reports of work that was given to it."""
        with self._gate.together():
            self._memory.check()

    def close(self) -> None:
        """Gives back the device's memory, when nothing is captured elsewhere."""
        with self._gate.together():
            self._lanes.clear()
            self._session = None  # nothing runs any more

    def _run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        batch, tokens = feeds[self._signature.primary].shape[:2]
        size = bucket(batch, tokens, self._signature.max_tokens)
        try:
            lane = self._lanes.pop()
        except IndexError:
            lane = Lane(self._session, self._signature, self._memory, self._pool)
        try:
            lane.upload(feeds, size)
            lane.bind(outputs, size)
            lane.compute(options)
            values = lane.download(outputs, size, batch, tokens)
            if lane.held_bytes > _KEPT_BYTES:
                lane.drop()
        except Exception:
            lane.drop()  # what went wrong may be a lack of memory
            raise
        finally:
            self._lanes.append(lane)
        return values
