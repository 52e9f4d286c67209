"""What a graph takes and gives, described once: export writes it, the server reads it, clients get it.

Axes have letters: B batch, T tokens, S tokens of a memory or a query, D d_model, H heads, L layers. B joins
requests. A letter with a size is fixed (D, H, L, …); every other one is padded to the longest of a batch, and
trimmed again. Batching, padding, trimming, selection, sizes and metadata all follow from them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.datatypes import DTYPES

LAYER_AXIS = re.compile("L|A")
"""The letters of an axis of layers: all of them, or chosen ones."""

HEAD_AXIS = re.compile(r"H\d*")
"""The letters of an axis of heads: all of them, or those that pruning left in a layer, such as H5."""

RANKED_AXIS = re.compile("Top|TopWords")
"""The letters of an axis of the strongest, those first: callers may ask for the first few."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output of a graph."""

    name: str
    datatype: str
    """A name of the protocol, such as FP32; BYTES are strings."""
    axes: tuple[str, ...] = ()
    """The letter of each axis; empty if a server does not say."""
    shape: tuple[int, ...] = ()
    """The size on each axis; -1 where it varies. Empty in manifests, which have the sizes of letters."""
    role: str = ""
    """Its meaning, such as `tokens` or `attention`; empty: its name says it."""
    fill: str | bool | int | float | None = None
    """What an input holds where a request leaves it out: a value, or an axis' size. None: it is required."""
    broadcasts: bool = False
    """Whether the graph takes the fill with size 1 on the axes that vary, but for B."""
    below: int | str | None = None
    """An input's integers must be from 0 to one less than this, or than the size of this axis."""
    range: tuple[float | None, float | None] | None = None
    """An input's floats must be finite, and from the first to the second; None: no bound."""
    layer: int | None = None
    """The encoder's layer that an output is of, where it has no axis of layers."""
    layers: tuple[int, ...] | None = None
    """The encoder's layers along the axis of layers; None: all, from 0."""
    heads: tuple[int, ...] | None = None
    """The numbers of the heads along the axis of heads, where others were pruned; None: all, from 0."""
    labels: tuple[str, ...] | None = None
    """Names along the last axis."""
    scores: str | None = None
    """What makes scores of logits, a `ScoreActivation`; None: the sigmoid of a single one, or the softmax."""
    activation: str | None = None
    """What the checkpoint's own library makes of logits, likewise; None: nothing says so."""
    unit: bool | None = None
    """Whether its vectors have length 1; None: they are not pooled."""
    matryoshka: tuple[int, ...] | None = None
    """The numbers of dimensions to which they were trained to be cut; empty: any; None: none."""
    optional: bool = False
    """Whether a request may leave an input out."""

    @classmethod
    def from_json(
        cls, described: Mapping[str, Any], *, name: str, datatype: str, shape: Sequence[int]
    ) -> "TensorSpec":
        """Read what `to_json` returned for metadata, which has the rest apart. A name stands for its role.

        Raises:
            ValueError, TypeError: It is anything else.
        """
        given = {key: described[key] for key in _DEFAULTS if described.get(key) is not None}
        return cls(
            name=name,
            datatype=datatype,
            shape=tuple(shape),
            **{"role": name}
            | given
            | {key: _READ[key](value) for key, value in given.items() if key in _READ},
        )

    def to_json(self) -> dict[str, Any]:
        """Return what there is to say beside name, datatype and shape."""
        return {key: value for key, usual in _DEFAULTS.items() if (value := getattr(self, key)) != usual}

    def with_sizes(self, sizes: Mapping[str, int]) -> "TensorSpec":
        """Return it with sizes by letter in place of letters: its shape, fill and bound."""
        return replace(
            self,
            shape=tuple(sizes.get(letter, -1) for letter in self.axes),
            fill=sizes.get(self.fill, self.fill) if isinstance(self.fill, str) else self.fill,
            below=sizes.get(self.below, self.below) if isinstance(self.below, str) else self.below,
        )

    @property
    def meaning(self) -> str:
        """Its role, or where it has none its name."""
        return self.role or self.name

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of fixed axes, by letter."""
        if len(self.shape) != len(self.axes):
            return {}
        return {letter: size for letter, size in zip(self.axes, self.shape, strict=True) if size >= 0}

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of its datatype, which is not BYTES."""
        return DTYPES[self.datatype]

    @property
    def is_text(self) -> bool:
        """Whether it holds strings, whose bytes do not follow from its shape."""
        return self.datatype == "BYTES"

    @property
    def is_per_sequence(self) -> bool:
        """Whether it holds one value for each sequence: [B]."""
        return len(self.axes) == 1

    @cached_property
    def also(self) -> tuple[str, ...]:
        """Datatypes that an input may have instead: those that convert to its own without loss."""
        if self.datatype == "FP32":
            return ("FP16",)
        is_bounded = isinstance(self.fill, str) or self.below is not None
        return ("INT64",) if self.datatype == "INT32" and is_bounded else ()

    def axis_of(self, letters: re.Pattern[str]) -> int | None:
        """Return the first axis whose letter matches; None: there is none."""
        return next((axis for axis, letter in enumerate(self.axes) if letters.fullmatch(letter)), None)

    @cached_property
    def layer_axis(self) -> int | None:
        """The axis of layers."""
        return self.axis_of(LAYER_AXIS)

    @cached_property
    def head_axis(self) -> int | None:
        """The axis of heads."""
        return self.axis_of(HEAD_AXIS)

    @cached_property
    def of_layers(self) -> Sequence[int]:
        """The encoder's layers that it is of: one, or those along its axis of layers."""
        if self.layer is not None:
            return (self.layer,)
        if self.layers is not None or self.layer_axis is None:
            return self.layers or ()
        return range(self.sizes.get(self.axes[self.layer_axis], 0))

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape, given the sizes of the axes that vary."""
        return tuple([self.sizes.get(letter) or sizes[letter] for letter in self.axes])

    def cut(self, array: NDArray[Any], sizes: Mapping[str, int]) -> NDArray[Any]:
        """Cut an array to these sizes, by letter. The result is a view."""
        return array[tuple(map(slice, map(sizes.get, self.axes)))]

    def left_out_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of the fill of an input that a request leaves out."""
        if not self.broadcasts:
            return self.at(sizes)
        return tuple(sizes["B"] if letter == "B" else self.sizes.get(letter, 1) for letter in self.axes)

    def filled_at(self, sizes: Mapping[str, int]) -> NDArray[Any]:
        """Return the fill of an input that a request leaves out, or zeros where requests must give it."""
        fill = sizes[self.fill] if isinstance(self.fill, str) else self.fill or 0
        return np.full(self.left_out_at(sizes), fill, self.dtype)


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value))


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(map(int, value))


def _bounds(value: Any) -> tuple[float | None, float | None]:
    least, largest = (None if bound is None else float(bound) for bound in value)
    return least, largest


_READ: Mapping[str, Callable[[Any], Any]] = {
    "axes": _strings,
    "role": str,
    "range": _bounds,
    "layer": int,
    "layers": _numbers,
    "heads": _numbers,
    "labels": _strings,
    "scores": str,
    "activation": str,
    "unit": bool,
    "matryoshka": _numbers,
}
_DEFAULTS = {
    each.name: each.default
    for each in fields(TensorSpec)
    if each.name not in {"name", "datatype", "shape", "optional"}  # which metadata says apart
}
