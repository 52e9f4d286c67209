"""Open and run onnxruntime sessions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_server.engine.device import Device, check_provider
from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.engine.placement import check_placement
from polyhead_server.errors import RepositoryError

_SHRINK = "memory.enable_memory_arena_shrinkage"


class OnnxRuntimeRun:
    """A run of a session of onnxruntime. Any number of them go side by side.

    Args:
        session: The session.
        arena: The arena that runs take memory from.
    """

    def __init__(self, session: ort.InferenceSession, arena: str) -> None:
        self._session = session
        self._arena = arena
        self._options = ort.RunOptions()

    def __call__(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str], *, shrink: bool
    ) -> list[NDArray[Any]]:
        """Run the graph; see `EngineRun`."""
        if shrink:
            self._options.add_run_config_entry(_SHRINK, self._arena)
        values: list[NDArray[Any]] = self._session.run(list(outputs), dict(feeds), self._options)
        return values

    def cancel(self) -> None:
        """Let onnxruntime end the run."""
        self._options.terminate = True


def open_session(path: Path, *, device: Device, threads: int) -> ort.InferenceSession:
    """Open a session of a graph.

    Args:
        path: The graph's file, beside its weights.
        device: Where it runs.
        threads: Threads of one run on the CPU.

    Raises:
        RepositoryError: The graph does not load.
        DeviceError: It does not run on the device, or only in part.
    """
    session = _open(path, device, threads)
    check_provider(session.get_providers(), device)
    if device.checks_placement:
        check_placement(path, session, device)
    return session


def _open(path: Path, device: Device, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # The default order leaves what is reduced to the end, and keeps every layer's attention until then.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    # Threads that spin while they wait take the CPU from the other sessions.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    if not device.packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if device.checks_placement:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = ort.InferenceSession(
            str(path), options, providers=device.providers, disabled_optimizers=device.slow_fusions
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise RepositoryError(f"{path.name} needs more memory than there is") from error
        raise RepositoryError(f"{path.name} cannot be loaded by onnxruntime {ort.__version__}") from error
    session.disable_fallback()
    return session
