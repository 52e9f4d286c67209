"""Open and run sessions of onnxruntime, which compute on their device and not on the CPU in its place.

Onnxruntime computes shapes on the CPU, on purpose. `dataflow` tells which nodes do that.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_server.engine.dataflow import Node, shape_nodes
from polyhead_server.engine.device import CPU, Device, check_provider
from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.errors import DeviceError, RepositoryError

_SHRINK = "memory.enable_memory_arena_shrinkage"


@dataclass(eq=False)
class OnnxRuntimeRun:
    """A run of a session of onnxruntime. Any number of them go side by side."""

    session: ort.InferenceSession
    arena: str
    """The arena that it takes memory from."""
    options: ort.RunOptions = field(default_factory=ort.RunOptions)

    def __call__(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str], *, shrink: bool
    ) -> list[NDArray[Any]]:
        """Run the graph; see `EngineRun`."""
        if shrink:
            self.options.add_run_config_entry(_SHRINK, self.arena)
        values: list[NDArray[Any]] = self.session.run(list(outputs), dict(feeds), self.options)
        return values

    def cancel(self) -> None:
        """Let onnxruntime end the run."""
        self.options.terminate = True


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
    check_provider(session.get_providers(), device)
    if device.checks_placement:
        check_placement(path, session, device)
    return session


# ---- Where its nodes are -----------------------------------------------------------------------

_ADDED = frozenset({"Gather"})
"""What onnxruntime itself adds to shapes: a Gather, where it moves a Transpose behind a Shape. CUDA has a
kernel for every Gather, so that one on the CPU is there because what it reads is."""


def placed(session: ort.InferenceSession) -> Mapping[str, list[Node]]:
    """Return the nodes of a session by provider. The session must record where its nodes are."""
    nodes: dict[str, list[Node]] = defaultdict(list)
    for part in session.get_provider_graph_assignment_info():
        nodes[part.ep_name] += [(node.name, node.op_type) for node in part.get_nodes()]
    return nodes


def slow_on_cpu(path: Path, session: ort.InferenceSession) -> Mapping[str, int]:
    """Count, by operator, the nodes that are left to the CPU although they do more than compute shapes.

    Args:
        path: The graph's file.
        session: A session of it, which records where its nodes are.
    """
    if not (left := placed(session).get(CPU)):
        return {}
    model = onnx.load(path, load_external_data=False)
    shapes, names = shape_nodes(model), {node.name for node in model.graph.node}
    work = [
        operator
        for name, operator in left
        if (name, operator) not in shapes and (name in names or operator not in _ADDED)
    ]
    return dict(sorted(Counter(work).items()))


def check_placement(path: Path, session: ort.InferenceSession, device: Device) -> None:
    """Check that the provider took the whole graph: it leaves to the CPU what it has no kernel for.

    Raises:
        DeviceError: It did not.
    """
    slow = ", ".join(f"{count} {operator}" for operator, count in slow_on_cpu(path, session).items())
    if slow:
        raise DeviceError(
            f"{path.name} must run on {device.provider} as a whole, onnxruntime left {slow} to the CPU: "
            "export it again with this version of polyhead, or serve it with --device cpu"
        )
    if device.provider not in placed(session):
        raise DeviceError(
            f"{path.name} must run on {device.provider}, but onnxruntime reports none of its operators "
            "there: install the onnxruntime that polyhead asks for, or serve it with --device cpu"
        )
