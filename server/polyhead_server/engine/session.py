"""Opens an onnxruntime session that is where it must be, as a whole."""

from pathlib import Path

import onnxruntime as ort

from polyhead_server.engine.devices import CPU, Device, check_provider
from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.engine.placement import placed, slow_on_cpu, spell
from polyhead_server.errors import DeviceError, RepositoryError


def open_session(path: Path, *, device: Device, threads: int) -> ort.InferenceSession:
    """Open a session of a graph.

    Args:
        path: The graph's file; its weights lie beside it.
        device: Where it runs.
        threads: Threads of one run on the CPU.

    Raises:
        RepositoryError: The graph does not load.
        DeviceError: It does not run where it must, or only in part.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while they wait take the processor from the sessions beside them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    if not device.packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if device.provider != CPU:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = ort.InferenceSession(str(path), options, providers=device.providers)
    except Exception as error:
        if is_out_of_memory(error):
            raise RepositoryError(f"{path.name} needs more memory than there is") from error
        raise RepositoryError(f"{path.name} cannot be loaded by onnxruntime {ort.__version__}") from error
    session.disable_fallback()
    check_provider(session.get_providers(), device)
    if device.provider != CPU:
        _check_placement(path.name, session, device)
    return session


def _check_placement(file: str, session: ort.InferenceSession, device: Device) -> None:
    """The provider takes a graph node by node, and leaves to the CPU what it has no kernel for."""
    operators = placed(session)
    slow = slow_on_cpu(operators, device.provider)
    if slow:
        raise DeviceError(
            f"{file} must run on {device.provider} as a whole, onnxruntime left {spell(slow)} to the CPU: "
            "export it again with this version of polyhead, or serve it with --device cpu"
        )
    if not operators.get(device.provider):
        raise DeviceError(
            f"{file} must run on {device.provider}, onnxruntime says of none of its operators that it does: "
            "install the onnxruntime that polyhead asks for, or serve it with --device cpu"
        )
