"""The graph that everyone runs: onnxruntime in process, and within each peer.

It runs in the environments of peers, so it imports nothing of polyhead.
"""

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
    # Products with weights of masked keys, which are denormal, would take long.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def pad_vectors(batch: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[np.generic]]:
    """Pad sequences [T_i, D] to the inputs of a graph: `x` [B, T, D] and `lengths` [B]."""
    lengths = np.array([len(sequence) for sequence in batch], dtype=np.int32)
    x = np.zeros((len(batch), int(lengths.max()), batch[0].shape[1]), dtype=np.float32)
    for row, sequence in zip(x, batch, strict=True):
        row[: len(sequence)] = sequence
    return {"x": x, "lengths": lengths}


def encode(session: ort.InferenceSession, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run sequences of equal length, [B, T, D]; return the encoder's output, [B, T, D]."""
    lengths = np.full(len(x), x.shape[1], np.int32)
    output: NDArray[np.float32] = session.run(["output"], {"x": x, "lengths": lengths})[0]
    return output


def encode_each(
    session: ort.InferenceSession, requests: Sequence[NDArray[np.float32]]
) -> list[NDArray[np.float32]]:
    """Answer requests, each of sequences of equal length [B_i, T_i, D], by one run, padded to the longest."""
    if len({x.shape[1] for x in requests}) == 1:
        output = encode(session, np.concatenate(requests) if len(requests) > 1 else requests[0])
    else:
        output = session.run(["output"], pad_vectors([sequence for x in requests for sequence in x]))[0]
    parts = np.split(output, np.cumsum([len(x) for x in requests])[:-1])
    return [part[:, : x.shape[1]] for part, x in zip(parts, requests, strict=True)]
