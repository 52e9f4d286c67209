"""Read inputs from files."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest


def load_array(option: str, path: Path) -> NDArray[Any]:
    """Read the sequences in an .npy file: vectors [T, D] or [B, T, D], or token ids [T] or [B, T].

    Args:
        option: The option that names the file, for messages.
        path: The file.

    Raises:
        InvalidRequest: It is no such file.
        OSError: It cannot be read.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        raise InvalidRequest(f"{option} must be an .npy file of numbers, {path} is none") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InvalidRequest(f"{option} must be an .npy file of one array, {path} has several")
    if array.ndim == 0:
        raise InvalidRequest(f"{option} must be an .npy file of sequences, {path} holds a single value")
    return array


def load_sequence(option: str, path: Path) -> NDArray[Any]:
    """Read one sequence likewise: vectors [T, D] or token ids [T]; or the only one of a batch.

    Raises:
        InvalidRequest: It is no such file, or has several sequences.
        OSError: It cannot be read.
    """
    array = load_array(option, path)
    axes = 2 if array.dtype.kind == "f" else 1
    if array.ndim == axes + 1 and len(array) == 1:
        array = array[0]
    if array.ndim != axes:
        raise InvalidRequest(
            f"{option} must be one sequence, vectors [T, D] or token ids [T], {path} has {list(array.shape)}"
        )
    return array
