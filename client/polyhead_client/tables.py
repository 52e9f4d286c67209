"""What an encoding has of attention and scores, as a table of pandas or labelled arrays of xarray.

Shape letters: T tokens, H heads, L layers, E edges of all sequences: who attends to whom.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.notebook import labels_of
from polyhead_proto import labelled
from polyhead_proto.outputs import DECLARED
from polyhead_proto.outputs.attention import CROSS_ATTENTION_WEIGHTS, Weights
from polyhead_proto.outputs.head_scores import HeadScores

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_WEIGHTS = [each.field for each in DECLARED.values() if isinstance(each, Weights) and each.has_queries]
"""The fields with the weights of layers."""

MAPS = [each.field for each in DECLARED.values() if each.is_map]
"""The fields that are a map [T, T] of one sequence."""


def frame_of(encoding: Any) -> "pd.DataFrame":
    """Return the attention of an encoding, which has some, as `Encoding.to_frame` describes.

    Raises:
        ImportError: pandas is not installed.
    """
    frames = []
    for each in _sequences(encoding):
        queries, keys = labels_of(
            next(iter(each.attention.values())), each.tokens, each.queries, memory=False
        )
        frames.append(labelled.weights_frame(each.attention, each.heads or (), queries, keys))
    return frames[0] if isinstance(encoding.lengths, int) else labelled.joined(frames, "sequence")


def dataset_of(encoding: Any, scores: Iterable[tuple[str, HeadScores | None]]) -> "xr.Dataset":
    """Return the attention of an encoding, and these scores by name, as `Encoding.to_xarray` describes.

    Raises:
        ImportError: xarray is not installed.
    """
    one, sequences = isinstance(encoding.lengths, int), _sequences(encoding)
    found = {}
    if not one:
        positions = {"sequence": range(len(sequences))}
        found["lengths"] = labelled.array(np.asarray(encoding.lengths), positions, "lengths")
    for name in (*_WEIGHTS, *MAPS):
        held = getattr(encoding, name)
        if held is None or not len(held):
            continue
        layers = list(held) if name in _WEIGHTS else []
        memory = name == CROSS_ATTENTION_WEIGHTS.field
        # [..., query, key] of each sequence
        values = [_stacked(getattr(each, name)) for each in sequences]
        sides = [
            labels_of(each_of, each.tokens, each.queries if layers else None, memory=memory)
            for each, each_of in zip(sequences, values, strict=True)
        ]
        maps = {"layer": layers, "head": list(encoding.heads or ())} if layers else {}
        if one:
            array, axes = values[0], _axes(*sides[0], "memory" if memory else "key")
        else:
            array = np.concatenate([each.reshape(*each.shape[:-2], -1) for each in values], axis=-1)
            axes = _edges(sides, "memory_" if memory else "")
        found[name] = labelled.array(array, maps | axes, name)
    found |= {name: each.to_xarray() for name, each in scores if each is not None}
    return labelled.dataset(found, {"model": encoding.model, "version": encoding.version})


def _sequences(encoding: Any) -> list[Any]:
    """Return the encoding of each sequence."""
    if isinstance(encoding.lengths, int):
        return [encoding]
    return [encoding.sequence(at) for at in range(len(encoding.lengths))]


def _stacked(held: Any) -> NDArray[Any]:
    """Return the weights of all layers as one array."""
    return np.stack([*held.values()]) if isinstance(held, Mapping) else np.asarray(held)


def _axes(queries: Mapping[int, str], keys: Sequence[str], key: str) -> dict[str, Any]:
    """Return the coordinates of a map: positions, and beside them tokens."""
    return {
        "query": list(queries),
        key: list(range(len(keys))),
        "query_token": ("query", list(queries.values())),
        f"{key}_token": (key, list(keys)),
    }


def _edges(sides: Sequence[tuple[Mapping[int, str], Sequence[str]]], prefix: str) -> dict[str, Any]:
    """Return the coordinates of the edges of all sequences: query by query, without padding.

    Args:
        sides: Of each sequence the queries, position → token, and the tokens of the keys.
        prefix: Of the names of the coordinates.
    """
    counts = [len(queries) * len(keys) for queries, keys in sides]
    along = {
        "edge_sequence": np.repeat(np.arange(len(sides), dtype=np.int32), counts),
        "query": np.concatenate([np.repeat(np.array([*one], np.int32), len(keys)) for one, keys in sides]),
        "key": np.concatenate(
            [np.tile(np.arange(len(keys), dtype=np.int32), len(one)) for one, keys in sides]
        ),
        "query_token": np.concatenate(
            [np.repeat(np.array([*one.values()], object), len(keys)) for one, keys in sides]
        ),
        "key_token": np.concatenate([np.tile(np.array(keys, object), len(one)) for one, keys in sides]),
    }
    return {f"{prefix}edge": None} | {
        f"{prefix}{name}": (f"{prefix}edge", values) for name, values in along.items()
    }
