"""Puts requests together for one run of the engine, and takes its outputs apart again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.names import LENGTHS
from polyhead_server.scheduling.work import Work
from polyhead_server.signature import Signature

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which axes of a graph's inputs and outputs are T; axis 0 is always B."""

    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]


def layout_of(signature: Signature) -> Layout:
    """The layout of a served graph: every size that varies, after B, is T."""
    manifest = signature.manifest
    return Layout(
        inputs={tensor.name: _axes(tensor.shape) for tensor in manifest.inputs},
        outputs={tensor.name: _axes(tensor.shape) for tensor in manifest.graphs[signature.graph].outputs},
    )


def _axes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(shape) if size == -1 and axis > 0)


def assemble(works: Sequence[Work], layout: Layout) -> Arrays:
    """The inputs of all requests, one after the other, padded with zeros to the longest.

    Args:
        works: At least one. A single one's inputs are returned as they are; nothing is copied.
        layout: Which axes are T.
    """
    if len(works) == 1:
        return works[0].feeds
    lengths = {work.tokens // work.batch for work in works}
    longest = max(lengths)
    feeds = {}
    for name in works[0].feeds:
        parts = [work.feeds[name] for work in works]
        axes = layout.inputs.get(name, ())
        feeds[name] = np.concatenate(parts) if len(lengths) == 1 or not axes else _pad(parts, axes, longest)
    return feeds


def _pad(parts: Sequence[NDArray[Any]], axes: Sequence[int], longest: int) -> NDArray[Any]:
    shape = list(parts[0].shape)
    shape[0] = sum(len(part) for part in parts)
    for axis in axes:
        shape[axis] = longest
    whole = np.zeros(shape, parts[0].dtype)
    row = 0
    for part in parts:
        where = [slice(size) for size in part.shape]
        where[0] = slice(row, row + len(part))
        whole[tuple(where)] = part
        row += len(part)
    return whole


def wanted(works: Sequence[Work]) -> list[str]:
    """Every output that one of the requests asks for."""
    return list(dict.fromkeys(name for work in works for name in work.outputs))


def split(outputs: Arrays, works: Sequence[Work], layout: Layout) -> list[Arrays]:
    """Gives each request its outputs, and only those, in its own shape. Nothing is copied: they are views.

    Args:
        outputs: What the engine returned for `assemble(works, layout)`.
        works: The same requests, in the same order.
        layout: Which axes are T.
    """
    if len(works) == 1:
        return [outputs]
    longest = max(work.tokens // work.batch for work in works)
    parts: list[Arrays] = []
    row = 0
    for work in works:
        length = work.tokens // work.batch
        rows = slice(row, row + work.batch)
        row += work.batch
        if length == longest:
            parts.append({name: outputs[name][rows] for name in work.outputs})
        else:
            parts.append(
                {
                    name: outputs[name][(rows, *_trim(layout.outputs.get(name, ()), length))]
                    for name in work.outputs
                }
            )
    return parts


def _trim(axes: Sequence[int], length: int) -> list[slice]:
    """Cuts the axes that are T; the axes between them stay whole."""
    cuts = [slice(None)] * (axes[-1] if axes else 0)
    for axis in axes:
        cuts[axis - 1] = slice(length)
    return cuts


def real_tokens(feeds: Arrays, padded: int) -> int:
    """The tokens of the sequences themselves, without padding."""
    # Of the few there are, NumPy's own sum takes ten times as long, which small work would notice.
    return sum(feeds[LENGTHS].tolist()) if LENGTHS in feeds else padded
