"""Runs whose sizes come often are captured as CUDA graphs, and replayed: one launch for all kernels of a run.

What onnxruntime and CUDA ask for: a captured run has its size, its buffers and its outputs for good; graphs
belong to the thread that captured them; a session runs one at a time; no graph is freed, so there are few,
and all of them are for callers' runs.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import onnxruntime as ort

from polyhead_server.engine.buckets import Size, bucket
from polyhead_server.engine.failures import is_lost, is_out_of_memory
from polyhead_server.engine.gate import GATE, Gate
from polyhead_server.engine.host_pool import HostPool
from polyhead_server.engine.lane import Lane
from polyhead_server.engine.memory import Memory
from polyhead_server.engine.runner import Arrays
from polyhead_server.logs import LOGGER
from polyhead_server.signature import Signature

_GRAPH = "gpu_graph_id"
_NONE = "-1"
_OFTEN = 2
"""A size is captured when it comes so many times."""
_LARGEST_BYTES = 16 * 2**20
"""Of a captured run's inputs and outputs. In larger runs the launches take no part of the time that shows."""


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """A captured run."""

    number: str
    lane: Lane


class CapturedRuns:
    """Runs of a session that was opened for CUDA graphs.

    Args:
        session: The session.
        signature: What it takes and gives.
        memory: The device's.
        most: How many graphs it may capture.
        gate: Which captures pass alone.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        signature: Signature,
        memory: Memory,
        *,
        most: int = 32,
        gate: Gate = GATE,
    ) -> None:
        self._signature = signature
        self._outputs = [tensor.name for tensor in signature.manifest.graphs[signature.graph].outputs]
        self._left = most
        self._gate = gate
        self._session = session
        self._memory = memory
        self._pool = HostPool(memory.allocate_host)
        self._lane = self._new_lane()
        self._seen: Counter[Size] = Counter()
        self._graphs: dict[Size, _Graph] = {}
        self._refused: set[Size] = set()
        self._captures = 0
        self._serving = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cuda-graphs")

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        """Runs once, when it is its turn."""
        return self._thread.submit(self._run, feeds, outputs, options).result()

    @property
    def captured(self) -> list[Size]:
        """The sizes that have graphs."""
        return sorted(self._graphs)

    def serve(self) -> None:
        """From now on runs are callers', and sizes that come often are captured."""
        self._serving = True

    def check(self) -> None:
        """Raises what the device reports of work that was given to it."""
        with self._gate.together():
            self._memory.check()

    def close(self) -> None:
        """Gives back the device's memory, when no run is left and none is captured elsewhere."""
        self._thread.shutdown()
        with self._gate.together():
            self._graphs.clear()
            self._lane = self._session = None  # type: ignore[assignment]  # nothing runs any more

    def _run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        batch, tokens = feeds[self._signature.primary].shape[:2]
        size = bucket(batch, tokens, self._signature.max_tokens)
        if self._serving:
            self._seen[size] += 1
            if self._is_worth_it(size):
                self._capture(feeds, size)
        graph = self._graphs.get(size)
        lane, number = (self._lane, _NONE) if graph is None else (graph.lane, graph.number)
        options.add_run_config_entry(_GRAPH, number)
        with self._gate.together():
            try:
                lane.upload(feeds, size)
                if graph is None:
                    lane.bind(outputs, size)
                lane.compute(options)
                return lane.download(outputs, size, batch, tokens)
            except Exception:
                lane.drop()
                self._graphs.pop(size, None)
                raise

    def _new_lane(self) -> Lane:
        return Lane(self._session, self._signature, self._memory, self._pool)

    def _is_worth_it(self, size: Size) -> bool:
        often = self._seen[size] >= _OFTEN and size not in self._graphs and size not in self._refused
        return often and self._captures < self._left and self._lane.bytes(size) <= _LARGEST_BYTES

    def _capture(self, feeds: Arrays, size: Size) -> None:
        """Captures the run of a size. Where that fails, none is captured any more; this one, if memory lacks.

        Raises:
            RuntimeError: The device is lost.
        """
        self._captures += 1
        graph = _Graph(number=str(self._captures), lane=self._new_lane())
        options = ort.RunOptions()
        options.add_run_config_entry(_GRAPH, graph.number)
        with self._gate.alone():
            try:
                graph.lane.upload(feeds, size)
                graph.lane.bind(self._outputs, size)
                graph.lane.compute(options)  # two regular runs before the capture, which is then replayed
            except Exception as error:
                graph.lane.drop()
                if is_lost(error, self._memory.check):
                    raise
                if is_out_of_memory(error):
                    LOGGER.warning("%s: no CUDA graph of (%d, %d): %s", self._signature.name, *size, error)
                    self._refused.add(size)
                else:
                    LOGGER.warning("%s: no more CUDA graphs: %s", self._signature.name, error)
                    self._left = 0
                return
        LOGGER.debug("%s: captured (%d, %d)", self._signature.name, *size)
        self._graphs[size] = graph
