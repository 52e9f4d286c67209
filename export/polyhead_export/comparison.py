"""How close to PyTorch a graph must be.

Float64 is the arbiter, of two questions. Does the graph compute what the encoder computes? Both are evaluated
in float64, where next to nothing but a mistake is left to differ. And does onnxruntime compute it well? Its
results in fp32 are about as close to float64 as PyTorch's are. Which of the two is off depends on the
processor, and how far depends on the encoder: one token in hundreds may be ill-conditioned, so that the same
sums in another order change its attention ten times as much as that of others. So no constant fits every
encoder. PyTorch is asked more than once, each time with its sums in another order: one sample says little of
what is rare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_export.errors import ParityError

Array = NDArray[Any]

RMS_FACTOR, LARGEST_FACTOR = 8, 32
"""How many times PyTorch's errors a graph's may be: their root mean square, and the largest."""

RMS_FLOOR, LARGEST_FLOOR = 5e-8, 1e-6
"""What is accepted on top, for outputs that PyTorch happens to compute exactly: some last digits."""

LARGEST = 1e-4
"""The largest error that is accepted, unless PyTorch's own is more than half of it."""

WIRING_SHARE = 0.25
"""Which share of PyTorch's errors a graph's may be where it is evaluated in float64.

Its constants are in fp32. PyTorch takes the same, but for those that are made of weights: matrices of norms.
"""

WIRING_RMS_FLOOR, WIRING_LARGEST_FLOOR = 2.0**-24, 2.0**-23
"""What is accepted of these on top: a constant's rounding, and two.

Fp32 is off by at most 2⁻²⁴ of a number, on every processor. The norms of one head of width 1 are products
with one such constant, so that all of them, and their root mean square, may be off as much.
"""


class Errors(NamedTuple):
    """How far numbers are from those in float64, as |x − x64| / max(1, |x64|)."""

    rms: float
    """The root mean square."""
    largest: float


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """An output's errors, over all inputs that were compared."""

    graph: Errors
    """As onnxruntime computes it."""
    pytorch: Errors
    """Those of PyTorch in fp32."""
    wiring: Errors | None = None
    """Those of the graph where it is evaluated in float64; None if it was not."""

    @property
    def limit(self) -> Errors:
        """The largest errors of the graph that are accepted."""
        rms, largest = self.pytorch
        outer = max(LARGEST, 2 * largest)
        return Errors(RMS_FACTOR * rms + RMS_FLOOR, min(LARGEST_FACTOR * largest + LARGEST_FLOOR, outer))

    @property
    def wiring_limit(self) -> Errors:
        """The largest errors that are accepted in float64."""
        rms, largest = self.pytorch
        return Errors(WIRING_SHARE * rms + WIRING_RMS_FLOOR, WIRING_SHARE * largest + WIRING_LARGEST_FLOOR)

    @property
    def change_limit(self) -> float:
        """The largest change by neighbours that is accepted.

        With them and without, an output is accepted up to the limit away from float64, so that two such are
        up to two limits apart, on any processor. A scale or a sum for a whole batch makes hundreds.
        """
        return 2 * self.limit.largest

    @property
    def excess(self) -> float:
        """How many times its limit the graph's error is; the graph is accepted up to 1."""
        return max(_excess(self.graph, self.limit), self.wiring_excess)

    @property
    def wiring_excess(self) -> float:
        """The same of the graph in float64."""
        return 0.0 if self.wiring is None else _excess(self.wiring, self.wiring_limit)


def _excess(errors: Errors, limit: Errors) -> float:
    ratios = [error / most for error, most in zip(errors, limit, strict=True)]
    return max(ratios) if np.isfinite(ratios).all() else float("inf")


class Change(NamedTuple):
    """What neighbours and padding change of an output: |x − x'| / max(1, |x'|)."""

    largest: float
    limit: float
    """The largest that is accepted, see `Closeness.change_limit`."""


def check_parity(compared: Mapping[str, Closeness], file: str) -> None:
    """Check the errors of a graph's outputs.

    Args:
        compared: Each output.
        file: The graph's, for the message.

    Raises:
        ParityError: An output is further from float64 than its limit, or the graph computes something else.
    """
    output, worst = max(compared.items(), key=lambda item: item[1].wiring_excess)
    if worst.wiring is not None and not worst.wiring_excess <= 1:
        raise ParityError(
            f"{file}: {output!r} must be what PyTorch gives where both compute in float64: off by at most "
            f"{_spell(worst.wiring_limit)}; was off by {_spell(worst.wiring)}"
        )
    output, worst = max(compared.items(), key=lambda item: item[1].excess)
    if not worst.excess <= 1:
        raise ParityError(
            f"{file}: {output!r} must be about as close to float64 as PyTorch is in fp32: off by at most "
            f"{_spell(worst.limit)}, where PyTorch is off by {_spell(worst.pytorch)}; was off by "
            f"{_spell(worst.graph)}"
        )


def _spell(errors: Errors) -> str:
    return f"{errors.rms:.1e} (root mean square) and {errors.largest:.1e} (largest)"


def part_of(output: str, part: str) -> str:
    """Name a part of an output that is judged by itself."""
    return f"{output} ({part})"


def parts_of(output: str, compared: Mapping[str, Closeness]) -> list[Closeness]:
    """Return the comparisons of an output, or of all its parts."""
    return [each for name, each in compared.items() if name == output or name.startswith(f"{output} (")]


def errors_of(actual: Array, exact: Array) -> NDArray[np.float64]:
    """Return |x − x64| / max(1, |x64|) of each number: absolute below 1, relative above.

    The result is infinite where either is NaN or infinity. Both arrays must have the same shape.
    """
    with np.errstate(invalid="ignore"):
        errors = np.abs(actual.astype(np.float64) - exact) / np.maximum(1.0, np.abs(exact))
    return np.where(np.isfinite(errors), errors, np.inf)


@dataclass
class Total:
    """Errors of an output, being added up over several inputs."""

    squares: float = 0.0
    count: int = 0
    largest: float = 0.0

    def add(self, actual: Array, exact: Array) -> None:
        """Add the errors of these numbers."""
        errors = errors_of(actual, exact)
        self.squares += float((errors**2).sum())
        self.count += errors.size
        self.largest = max(self.largest, float(errors.max(initial=0.0)))

    @property
    def errors(self) -> Errors:
        """Of all numbers."""
        return Errors((self.squares / max(1, self.count)) ** 0.5, self.largest)
