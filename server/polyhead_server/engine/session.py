"""Open onnxruntime sessions, and check which provider computes which of their operators."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_server.engine.device import Device, Operators
from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.errors import DeviceError, RepositoryError

_SHAPES = frozenset(
    {
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Gather", "Identity"),
        *("Range", "Shape", "Size", "Slice", "Squeeze", "Unsqueeze"),
    }
)
"""Operators that onnxruntime computes shapes with, on purpose on the CPU. All others are work for the GPU."""

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
        _check_placement(path.name, session, device)
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


def check_provider(session_providers: Sequence[str], device: Device) -> None:
    """Check that a session got its device.

    Raises:
        DeviceError: onnxruntime took another one.
    """
    if session_providers[0] != device.provider:
        raise DeviceError(
            f"the session must run on {device.provider}, onnxruntime gave it {session_providers[0]}"
        )


def placed(session: ort.InferenceSession) -> Operators:
    """Count the operators of a session by provider. The session must record where its nodes are."""
    counts: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        counts.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return {provider: dict(sorted(counts[provider].items())) for provider in sorted(counts)}


def slow_on_cpu(operators: Operators, device: Device) -> Mapping[str, int]:
    """Return the operators that are left to the CPU although they do more than compute shapes."""
    left = device.left_to_cpu(operators)
    return {operator: count for operator, count in left.items() if operator not in _SHAPES}


def _check_placement(file: str, session: ort.InferenceSession, device: Device) -> None:
    """Check that the provider took the whole graph: it leaves to the CPU what it has no kernel for."""
    operators = placed(session)
    slow = ", ".join(f"{count} {operator}" for operator, count in slow_on_cpu(operators, device).items())
    if slow:
        raise DeviceError(
            f"{file} must run on {device.provider} as a whole, onnxruntime left {slow} to the CPU: "
            "export it again with this version of polyhead, or serve it with --device cpu"
        )
    if not operators.get(device.provider):
        raise DeviceError(
            f"{file} must run on {device.provider}, but onnxruntime reports none of its operators there: "
            "install the onnxruntime that polyhead asks for, or serve it with --device cpu"
        )
