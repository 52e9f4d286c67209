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

Sizes = tuple[int, ...]
"""The sizes of a layout's letters."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which axes of a graph's inputs and outputs vary; axis 0 is always B."""

    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    measures: tuple[tuple[str, int], ...] = ()
    """For each letter, an input and its axis from which the letter's size is read."""
    lengths: str | None = None
    """The input with each sequence's length without padding."""

    def sizes(self, works: Sequence[Work]) -> list[Sizes]:
        """Return the sizes of each request's letters."""
        if len(self.measures) == 1:
            ((name, axis),) = self.measures
            return [(work.feeds[name].shape[axis],) for work in works]
        return [tuple([work.feeds[name].shape[axis] for name, axis in self.measures]) for work in works]


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


def assemble(works: Sequence[Work], sizes: Sequence[Sizes], layout: Layout) -> Arrays:
    """Concatenate the inputs of all requests, padded with zeros to the longest.

    Args:
        works: At least one. The inputs of a single one are returned without a copy.
        sizes: The layout's sizes of each.
        layout: Which axes vary.
    """
    if len(works) == 1:
        return works[0].feeds
    longest = None if sizes.count(sizes[0]) == len(sizes) else _longest(sizes)
    feeds = {}
    for name in works[0].feeds:
        parts = [work.feeds[name] for work in works]
        axes = layout.inputs.get(name, ())
        feeds[name] = _pad(parts, axes, longest) if longest and axes else np.concatenate(parts)
    return feeds


def _longest(sizes: Sequence[Sizes]) -> Sizes:
    return tuple(map(max, zip(*sizes, strict=True)))


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


def split(outputs: Arrays, works: Sequence[Work], sizes: Sequence[Sizes], layout: Layout) -> list[Arrays]:
    """Return the outputs of each request, in its own shape. They are views; nothing is copied.

    Args:
        outputs: What the engine returned for `assemble(works, sizes, layout)`.
        works: The same requests in the same order.
        sizes: The layout's sizes of each.
        layout: Which axes vary.
    """
    if len(works) == 1:
        return [outputs]
    longest = _longest(sizes)
    parts: list[Arrays] = []
    row = 0
    for work, own in zip(works, sizes, strict=True):
        rows = slice(row, row := row + work.batch)
        part = {name: outputs[name][rows] for name in work.outputs}
        if own != longest:
            part = {name: array[_trim(layout.outputs.get(name, ()), own)] for name, array in part.items()}
        parts.append(part)
    return parts


def _trim(axes: Axes, sizes: Sizes) -> tuple[slice, ...]:
    """Return slices that cut the axes that vary."""
    cuts = [slice(None)] * (axes[-1][0] + 1 if axes else 1)
    for axis, letter in axes:
        cuts[axis] = slice(sizes[letter])
    return tuple(cuts)


def real_tokens(feeds: Arrays, layout: Layout, padded: int) -> int:
    """Count the tokens without padding."""
    if layout.lengths is None:
        return padded
    # For so few numbers, NumPy's sum takes ten times as long.
    return sum(feeds[layout.lengths].tolist())
