"""Results as tables and arrays with labels, of pandas and xarray, and in few words.

Shape letters: T tokens, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


_MOST_NUMBERS = 6


def frame(
    values: NDArray[Any], levels: Mapping[str, Sequence[Any]], columns: Sequence[str]
) -> "pd.DataFrame":
    """Return a DataFrame with a row for each combination of the levels.

    Args:
        values: [level 0, level 1, ..., columns].
        levels: The values of each level, by its name.
        columns: The names of the columns.

    Raises:
        ImportError: pandas is not installed.
    """
    pandas = _load("pandas", "to_frame")
    return pandas.DataFrame(
        values.reshape(-1, len(columns)),
        index=pandas.MultiIndex.from_product(levels.values(), names=list(levels)),
        columns=list(columns),
    )


def weights_frame(
    attention: Mapping[int, NDArray[Any]],
    heads: Sequence[int],
    queries: Mapping[int, str],
    keys: Sequence[str],
) -> "pd.DataFrame":
    """Return a DataFrame with a row for each weight, indexed by layer, head, query and key.

    Args:
        attention: Layer → [H, T_query, T_key].
        heads: Their numbers.
        queries: Position → token.
        keys: The tokens of all keys.

    Raises:
        ImportError: pandas is not installed.
    """
    values = np.stack(list(attention.values()))
    levels = {"layer": list(attention), "head": heads, "query": list(queries), "key": range(len(keys))}
    table = frame(values, levels, ["weight"])
    queried = np.repeat(np.array(list(queries.values()), object), len(keys))
    repeats = len(table) // max(len(queried), 1)
    table.insert(0, "query_token", np.tile(queried, repeats))
    table.insert(1, "key_token", np.tile(np.array(list(keys), object), len(table) // max(len(keys), 1)))
    return table


def joined(frames: Sequence["pd.DataFrame"], level: str) -> "pd.DataFrame":
    """Return frames as one, with their numbers as the first level of the index.

    Raises:
        ImportError: pandas is not installed.
    """
    made: pd.DataFrame = _load("pandas", "to_frame").concat(frames, keys=range(len(frames)), names=[level])
    return made


def array(values: NDArray[Any], coordinates: Mapping[str, Any], name: str) -> "xr.DataArray":
    """Return a DataArray.

    Args:
        values: An array with a dimension for each coordinate that is no tuple.
        coordinates: Name → the labels along the dimension of this name, or None for a dimension without any;
            or (dimension, further labels).
        name: What it is.

    Raises:
        ImportError: xarray is not installed.
    """
    dimensions = [key for key, value in coordinates.items() if not isinstance(value, tuple)]
    made: xr.DataArray = _load("xarray", "to_xarray").DataArray(
        values,
        dims=dimensions,
        coords={key: value for key, value in coordinates.items() if value is not None},
        name=name,
    )
    return made


def dataset(arrays: Mapping[str, "xr.DataArray"], attributes: Mapping[str, str]) -> "xr.Dataset":
    """Return a Dataset.

    Raises:
        ImportError: xarray is not installed.
    """
    made: xr.Dataset = _load("xarray", "to_xarray").Dataset(dict(arrays), attrs=dict(attributes))
    return made


def shape_of(value: Any) -> str:
    """Say the shape of an array, of a list of arrays, or of the arrays of layers, in a few words."""
    if isinstance(value, Mapping):
        layers = f"layer{'s' * (len(value) > 1)} {numbers(list(value))}"
        return f"{shape_of(next(iter(value.values())))} of {layers}"
    if not isinstance(value, list):
        return str(list(value.shape))
    sides = zip(*(item.shape for item in value), strict=True)
    found = [f"{min(side)}" if min(side) == max(side) else f"{min(side)}–{max(side)}" for side in sides]
    return f"{len(value)} × [{', '.join(found)}]"


def numbers(values: Sequence[int]) -> str:
    """Write numbers in few characters: 0, 3 or 0–11."""
    first, last = values[0], values[-1]
    if len(values) > 2 and list(values) == list(range(first, last + 1)):
        return f"{first}–{last}"
    shown = ", ".join(map(str, values[:_MOST_NUMBERS]))
    return shown + (", …" if len(values) > _MOST_NUMBERS else "")


def _load(module: str, method: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{method} needs {module}: pip install {module}") from error
