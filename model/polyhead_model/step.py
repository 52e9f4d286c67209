"""What a step of a forward pass is: a tensor, its shape, what it is computed from. Needs no torch.

Shapes are written in letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, K head width,
L layers, F feed-forward width, E embedding width.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ParameterTensor:
    """A matrix, a bias, or another tensor of parameters."""

    name: str
    """As formulas have it, such as "W_q"."""
    part: str
    """What it is counted as."""
    axes: str
    """Its shape in letters, such as "D H·K"."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A tensor of a forward pass, and how it is computed."""

    name: str
    """Its symbol and its formula, such as "q = x W_q"."""
    axes: str
    """Its shape in letters, such as "B T H·K"."""
    reads: tuple[str, ...] | None = None
    """The symbols of the tensors that it is computed from; None = that of the step before."""
    part: str | None = None
    """What a matrix product is counted as; None = there is none."""
    over: str | None = None
    """What the product sums over: [B, T, D] times [D, H·K] sums over D."""
    product: str | None = None
    """The shape of a product of activations of which it is made, if that is another one than its own."""
    parameters: tuple[ParameterTensor, ...] = ()
    """The parameters that it reads."""
    role: str | None = None
    """What it is in a reply, such as "output" or "attention"; None = it is in none."""

    @property
    def symbol(self) -> str:
        """What the steps after it call it."""
        return self.name.partition(" = ")[0].partition(" (")[0]


@dataclass(frozen=True, kw_only=True)
class Section:
    """Steps that follow each other: the input, equal layers, or the output."""

    stage: Literal["input", "layers", "output"]
    steps: tuple[Step, ...]
    sizes: Mapping[str, int]
    """The size of every letter."""
    layers: Sequence[int] | None = None
    """The numbers of the layers that take these steps; None = they are not in a layer."""

    def shape(self, axes: str) -> tuple[int, ...]:
        """Return a shape in numbers."""
        return tuple(math.prod(self._factors(axis)) for axis in axes.split())

    def count(self, axes: str) -> int:
        """Return how many numbers a tensor of this shape has."""
        return math.prod(self._factors(axes))

    def _factors(self, axes: str) -> Iterator[int]:
        return (self.sizes[each] if each in self.sizes else int(each) for each in factors(axes))


def factors(axes: str) -> list[str]:
    """Split a shape in letters into its factors, numbers among them: "B 3·H·K" gives B, 3, H and K."""
    return re.findall(r"[^ ·]+", axes)


def norm_step(symbol: str, x: str, axes: str = "B T D", *, part: str, bias: bool, suffix: str = "") -> Step:
    """Return a norm of x; `suffix` tells its parameters from those of others."""
    width = axes.rsplit(maxsplit=1)[-1]
    return Step(
        name=f"{symbol} = norm({x})",
        axes=axes,
        reads=(x,),
        parameters=tuple(
            ParameterTensor(name=f"{each}{suffix}", part=part, axes=width) for each in ("γβ" if bias else "γ")
        ),
    )


def linear_step(
    name: str,
    axes: str,
    *,
    over: str,
    reads: tuple[str, ...],
    part: str,
    matrix: str,
    group: str | None = None,
    bias: bool = True,
) -> Step:
    """Return a product with a matrix of parameters, and maybe a bias, which are counted as `group`."""
    width = axes.rsplit(maxsplit=1)[-1]
    matrices, biases = (f"{group} matrices", f"{group} biases") if group else (part, part)
    parameters = (
        ParameterTensor(name=f"W_{matrix}", part=matrices, axes=f"{over} {width}"),
        ParameterTensor(name=f"b_{matrix}", part=biases, axes=width),
    )
    return Step(
        name=name,
        axes=axes,
        reads=reads,
        part=part,
        over=over,
        parameters=parameters if bias else parameters[:1],
    )
