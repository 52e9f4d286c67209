"""Write nested values with arrays in them as an .npz file, and read them back.

Each array goes by the path of its place, such as `attention.5.0`, so that NumPy alone can read it. How they
hang together, and all that is no array, is JSON in the array `STRUCTURE`.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

STRUCTURE = "structure"
"""The name of the array with the JSON text."""


def write_npz(path: Path | str | BinaryIO, values: Mapping[str, Any]) -> None:
    """Write an .npz file.

    Args:
        path: The file, whose name must end with .npz; or an open one.
        values: Arrays, texts, numbers, booleans and None, in mappings and sequences of any depth. Lists of
            texts are written as arrays.

    Raises:
        ValueError: The name of the file ends otherwise.
    """
    if isinstance(path, Path | str) and Path(path).suffix != ".npz":  # NumPy would append it
        raise ValueError(f"path must be a file that ends with .npz, was {path}")
    arrays: dict[str, NDArray[Any]] = {}
    structure = {name: _take_out(name, value, arrays) for name, value in values.items()}
    np.savez(path, **{STRUCTURE: np.array(json.dumps(structure))}, **arrays)  # type: ignore[arg-type]


def read_npz(path: Path | str) -> dict[str, Any]:
    """Read what `write_npz` wrote; sequences are lists.

    Raises:
        ValueError: It is no such file.
        OSError: It cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            structure = json.loads(str(arrays[STRUCTURE]))
            return {name: _put_back(part, arrays) for name, part in structure.items()}
    except (ValueError, TypeError, AttributeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be an .npz file that polyhead wrote, and is none: {error}") from error


def read_format(path: Path | str, what: str, *, key: str, number: int) -> dict[str, Any]:
    """Read what `write_npz` wrote of one format, whose number stands under a key that is left out.

    Raises:
        ValueError: It is no such file, or of another format.
        OSError: It cannot be read.
    """
    values = read_npz(path)
    if values.pop(key, None) != number:
        raise ValueError(f"{path} must be {what} of format {number}; update polyhead to read others")
    return values


def _take_out(name: str, value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a value as JSON can hold it, in which arrays are named, and add these to `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        arrays[name] = np.array(value, np.str_)
        return {"texts": name}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _take_out(f"{name}.{key}", part, arrays)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [_take_out(f"{name}.{at}", part, arrays) for at, part in enumerate(value)]
    return value


def _put_back(part: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(part, list):
        return [_put_back(item, arrays) for item in part]
    if not isinstance(part, dict):
        return part
    ((kind, value),) = part.items()
    if kind == "mapping":
        return {key: _put_back(item, arrays) for key, item in value}
    return arrays[value] if kind == "array" else arrays[value].tolist()
