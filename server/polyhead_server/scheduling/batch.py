"""Join requests for one run of the engine, and split its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.tensors import TensorSpec
from polyhead_server.engine.engine import Arrays
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.work import Work

Axes = tuple[tuple[int, int], ...]
"""The axes of a tensor that vary, except B: (index of the axis, index of its letter)."""

Sizes = tuple[int, ...]
"""The sizes of the letters of dynamic axes."""


@dataclass(frozen=True, kw_only=True)
class DynamicAxes:
    """Which axes of a graph's inputs and outputs vary; axis 0 is always B."""

    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    measures: tuple[tuple[str, int], ...] = ()
    """For each letter, an input and its axis from which the letter's size is read."""
    asked: tuple[tuple[int, int], ...] = ()
    """The indices of the letters of what requests may ask of a sequence, and the bytes of one such thing."""
    token_bytes: int = 1
    """The bytes of a token's values, by which what is asked counts as tokens."""
    lengths: tuple[tuple[str, int], ...] = ()
    """The inputs with the lengths of sequences without padding, and the index of each one's letter."""
    broadcasting: frozenset[str] = frozenset()
    """The inputs that have size 1 on the axes that vary where a request left them out."""
    packed: bool = False
    """Whether layers compute the tokens that exist, and no padding."""
    nonzero_in_padding: frozenset[str] = frozenset()
    """The outputs that hold anything but zeros in padding."""

    def sizes(self, works: Sequence[Work]) -> list[Sizes]:
        """Return the sizes of each request's letters."""
        if len(self.measures) == 1:
            ((name, axis),) = self.measures
            return [(work.feeds[name].shape[axis],) for work in works]
        return [tuple([work.feeds[name].shape[axis] for name, axis in self.measures]) for work in works]

    def asked_tokens(self, feeds: Arrays) -> int:
        """Return how many tokens are as many bytes as what a request asks of each of its sequences."""
        asked = 0
        for letter, size in self.asked:
            name, axis = self.measures[letter]
            asked += size * feeds[name].shape[axis]
        return asked // self.token_bytes


def dynamic_axes_of(signature: Signature) -> DynamicAxes:
    """Return the dynamic axes of a served graph."""
    letters = {letter: place for place, letter in enumerate(signature.letters)}
    return DynamicAxes(
        inputs={spec.name: _axes(spec, letters) for spec in signature.feeds},
        outputs={spec.name: _axes(spec, letters) for spec in signature.results},
        measures=tuple(signature.measures.values()),
        asked=tuple((letters[letter], signature.asked_bytes(letter)) for letter in signature.optional),
        token_bytes=signature.token_bytes,
        lengths=tuple((spec.name, letters[str(spec.fill)]) for spec in signature.lengths),
        broadcasting=frozenset(spec.name for spec in signature.feeds if spec.broadcasts),
        packed=signature.packed,
        nonzero_in_padding=frozenset(
            spec.name for spec in signature.results if spec.dtype.kind != "f" and _axes(spec, letters)
        ),
    )


def _axes(spec: TensorSpec, letters: Mapping[str, int]) -> Axes:
    return tuple((axis, letters[letter]) for axis, letter in enumerate(spec.axes) if letter in letters)


def measure(feeds: Arrays, dynamic: DynamicAxes) -> tuple[Size, int]:
    """Return the size of a request, what it asks counted as tokens, too, and its tokens without padding."""
    asked = {letter for letter, _ in dynamic.asked}
    rows = len(feeds[dynamic.measures[0][0]])
    longest = max(
        [feeds[name].shape[axis] for at, (name, axis) in enumerate(dynamic.measures) if at not in asked]
    )
    tokens = real = rows * longest
    if dynamic.lengths:
        lengths = [feeds[name].tolist() for name, _ in dynamic.lengths]
        real = sum(map(sum, lengths))  # for so few numbers, NumPy's sum takes ten times as long
        if dynamic.packed:  # an empty sequence is computed as one token
            tokens = real + sum([each.count(0) for each in lengths])
    if asked:
        tokens += rows * dynamic.asked_tokens(feeds)
    return Size(rows, longest, tokens), real


class JointWork:
    """Requests that run together.

    Args:
        works: At least one.
        dynamic: Which axes vary.
    """

    def __init__(self, works: Sequence[Work], dynamic: DynamicAxes) -> None:
        self.works = works
        self.rows = sum([work.size.rows for work in works])
        """B of the run."""
        self._dynamic = dynamic

    @cached_property
    def _sizes(self) -> list[Sizes]:
        """The sizes of the letters of each request."""
        return self._dynamic.sizes(self.works)

    @cached_property
    def _longest(self) -> Sizes:
        """The largest size of each letter."""
        return tuple(map(max, zip(*self._sizes, strict=True)))

    @property
    def outputs(self) -> Sequence[str]:
        """Every output that any of the requests asks for."""
        if len(self.works) == 1:
            return self.works[0].outputs
        return list(dict.fromkeys(name for work in self.works for name in work.outputs))

    def feeds(self) -> Arrays:
        """Concatenate the inputs of all requests, padded with zeros to the longest.

        Those of a single one are returned without a copy.
        """
        works = self.works
        if len(works) == 1:
            return works[0].feeds
        sizes = self._sizes
        are_equal = sizes.count(sizes[0]) == len(sizes)
        feeds = {}
        for name in works[0].feeds:
            parts = [work.feeds[name] for work in works]
            broadcasts = name in self._dynamic.broadcasting
            if (are_equal and not broadcasts) or len({part.shape[1:] for part in parts}) == 1:
                # Where all left an input out, it stays small. A value that was given for a sequence of length
                # 1 holds for its padding, too.
                feeds[name] = np.concatenate(parts)
            else:
                feeds[name] = self._pad(parts, self._dynamic.inputs[name])
        return feeds

    def _pad(self, parts: Sequence[NDArray[Any]], axes: Axes) -> NDArray[Any]:
        """Join inputs of different lengths, or some of which were left out and have size 1."""
        shape = [self.rows, *parts[0].shape[1:]]
        for axis, letter in axes:
            shape[axis] = self._longest[letter]
        whole, row = np.zeros(shape, parts[0].dtype), 0
        for part, own in zip(parts, self._sizes, strict=True):
            where = trim(axes, own)
            whole[(slice(row, row := row + len(part)), *where[1:])] = part
        return whole

    def split(self, outputs: Arrays) -> list[Arrays]:
        """Return the outputs of each request, in its own shape. They are views; nothing is copied."""
        if len(self.works) == 1:
            return [outputs]
        axes = self._dynamic.outputs
        parts: list[Arrays] = []
        row = 0
        for work, own in zip(self.works, self._sizes, strict=True):
            rows = slice(row, row := row + work.size.rows)
            part = {name: outputs[name][rows] for name in work.outputs}
            if own != self._longest:
                part = {name: array[trim(axes.get(name, ()), own)] for name, array in part.items()}
            parts.append(part)
        return parts

    def asked_bytes(self) -> int:
        """Return the bytes of what the requests ask of their sequences, padding included."""
        return self.rows * sum([size * self._longest[letter] for letter, size in self._dynamic.asked])

    def computed_tokens(self) -> int:
        """Return how many tokens layers compute."""
        works, dynamic = self.works, self._dynamic
        if dynamic.packed:
            tokens = sum([work.size.tokens for work in works])
            if dynamic.asked:
                tokens -= sum([work.size.rows * dynamic.asked_tokens(work.feeds) for work in works])
            return tokens
        if len(dynamic.lengths) < 2:
            return self.rows * max([work.size.longest for work in works])
        return self.rows * sum([self._longest[letter] for _, letter in dynamic.lengths])


def trim(axes: Axes, sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return slices that cut the axes that vary."""
    cuts = [slice(None)] * (axes[-1][0] + 1 if axes else 1)
    for axis, letter in axes:
        cuts[axis] = slice(sizes[letter])
    return tuple(cuts)
