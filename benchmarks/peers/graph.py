"""The graph that everyone runs: onnxruntime in process, and within each peer."""

from collections.abc import Sequence
from os import PathLike

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray


def open_graph(path: str | PathLike[str], threads: int) -> ort.InferenceSession:
    """Open a session on the CPU.

    Args:
        path: An ONNX file.
        threads: Threads of one run; 0 is one per core.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # No spinning between operators, as in a server that shares its cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def encode(session: ort.InferenceSession, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run sequences of equal length, [B, T, D]; return the encoder's output, [B, T, D]."""
    lengths = np.full(len(x), x.shape[1], np.int32)
    output: NDArray[np.float32] = session.run(["output"], {"x": x, "lengths": lengths})[0]
    return output


def encode_each(
    session: ort.InferenceSession, requests: Sequence[NDArray[np.float32]]
) -> list[NDArray[np.float32]]:
    """Answer requests, each of sequences of equal length [B_i, T_i, D], by one run, padded to the longest."""
    rows = [len(x) for x in requests]
    lengths = np.repeat([x.shape[1] for x in requests], rows).astype(np.int32)
    if (lengths == lengths[0]).all():
        output = encode(session, np.concatenate(requests) if len(requests) > 1 else requests[0])
    else:
        padded = np.zeros((len(lengths), lengths.max(), requests[0].shape[2]), np.float32)
        for start, x in zip(np.cumsum(rows) - rows, requests, strict=True):
            padded[start : start + len(x), : x.shape[1]] = x
        output = session.run(["output"], {"x": padded, "lengths": lengths})[0]
    parts = np.split(output, np.cumsum(rows)[:-1])
    return [part[:, : x.shape[1]] for part, x in zip(parts, requests, strict=True)]
