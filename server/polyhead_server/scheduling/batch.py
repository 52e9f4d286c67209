"""Join requests for one run of the engine, and split its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.names import LENGTHS
from polyhead_server.engine.engine import Arrays
from polyhead_server.repository.signature import Signature, TensorSpec
from polyhead_server.scheduling.work import Work

Axes = tuple[tuple[int, int], ...]
"""The axes of a tensor that vary, except B: (index of the axis, index of its letter in the layout)."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which axes of a graph's inputs and outputs vary; axis 0 is always B."""

    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    measures: tuple[tuple[str, int], ...] = ()
    """For each letter, an input and its axis from which the letter's size is read."""
    lengths: str | None = None
    """The input with each sequence's length without padding."""

    def sizes(self, work: Work) -> tuple[int, ...]:
        """Return the sizes of a request's letters."""
        return tuple([work.feeds[name].shape[axis] for name, axis in self.measures])


def layout_of(signature: Signature) -> Layout:
    """Return the layout of a served graph."""
    letters = {letter: place for place, letter in enumerate(signature.letters)}
    by_fill = (spec for spec in signature.feeds if spec.role == LENGTHS and spec.fill == signature.length)
    lengths = next(by_fill, None)
    ordered = (signature.primary, *signature.feeds)
    return Layout(
        inputs={spec.name: _axes(spec, letters) for spec in signature.feeds},
        outputs={spec.name: _axes(spec, letters) for spec in signature.results},
        measures=tuple(
            next((spec.name, spec.axes.index(letter)) for spec in ordered if letter in spec.axes)
            for letter in letters
        ),
        lengths=None if lengths is None else lengths.name,
    )


def _axes(spec: TensorSpec, letters: Mapping[str, int]) -> Axes:
    return tuple((axis, letters[letter]) for axis, letter in enumerate(spec.axes) if letter in letters)


def assemble(works: Sequence[Work], layout: Layout) -> Arrays:
    """Concatenate the inputs of all requests, padded with zeros to the longest.

    Args:
        works: At least one. The inputs of a single one are returned without a copy.
        layout: Which axes vary.
    """
    if len(works) == 1:
        return works[0].feeds
    sizes = {layout.sizes(work) for work in works}
    longest = tuple(map(max, zip(*sizes, strict=True)))
    feeds = {}
    for name in works[0].feeds:
        parts = [work.feeds[name] for work in works]
        axes = layout.inputs.get(name, ())
        feeds[name] = np.concatenate(parts) if len(sizes) == 1 or not axes else _pad(parts, axes, longest)
    return feeds


def _pad(parts: Sequence[NDArray[Any]], axes: Axes, longest: Sequence[int]) -> NDArray[Any]:
    shape = list(parts[0].shape)
    shape[0] = sum(len(part) for part in parts)
    for axis, letter in axes:
        shape[axis] = longest[letter]
    whole = np.zeros(shape, parts[0].dtype)
    row = 0
    for part in parts:
        where = [slice(size) for size in part.shape]
        where[0] = slice(row, row + len(part))
        whole[tuple(where)] = part
        row += len(part)
    return whole


def outputs_of(works: Sequence[Work]) -> list[str]:
    """Return every output that any of the requests asks for."""
    return list(dict.fromkeys(name for work in works for name in work.outputs))


def split(outputs: Arrays, works: Sequence[Work], layout: Layout) -> list[Arrays]:
    """Return the outputs of each request, in its own shape. They are views; nothing is copied.

    Args:
        outputs: What the engine returned for `assemble(works, layout)`.
        works: The same requests in the same order.
        layout: Which axes vary.
    """
    if len(works) == 1:
        return [outputs]
    sizes = [layout.sizes(work) for work in works]
    longest = tuple(map(max, zip(*sizes, strict=True)))
    parts: list[Arrays] = []
    row = 0
    for work, own in zip(works, sizes, strict=True):
        rows = slice(row, row + work.batch)
        row += work.batch
        axes = {} if own == longest else layout.outputs
        parts.append({name: outputs[name][(rows, *_trim(axes.get(name, ()), own))] for name in work.outputs})
    return parts


def _trim(axes: Axes, sizes: Sequence[int]) -> list[slice]:
    """Return slices of the axes after B that cut those that vary."""
    cuts = [slice(None)] * (axes[-1][0] if axes else 0)
    for axis, letter in axes:
        cuts[axis - 1] = slice(sizes[letter])
    return cuts


def real_tokens(feeds: Arrays, layout: Layout, padded: int) -> int:
    """Count the tokens without padding."""
    if layout.lengths is None:
        return padded
    # For so few numbers, NumPy's sum takes ten times as long.
    return sum(feeds[layout.lengths].tolist())
