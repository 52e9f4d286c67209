"""The outputs that a request asks for, and what is selected from them.

Shape letters: B batch, T tokens, S tokens of a memory, H heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from polyhead_proto.datatypes import Precision
from polyhead_proto.names import FRACTIONS, LOGITS


@dataclass(frozen=True, kw_only=True)
class SelectedOutput:
    """An output of a request, and what is selected from it."""

    name: str
    role: str
    datatype: str
    """In the model; the reply may convert it. Of vectors with a precision, that of the reply."""
    dims: tuple[str | int, ...]
    """The axes that it has in the reply: letters, and sizes where these are known to be those asked for."""
    parameters: tuple[tuple[str, str | int], ...] = ()
    layers: Sequence[int] = ()
    """The encoder's layers that it is of: one, or those along its axis of layers."""
    layer_axis: int | None = None
    heads: tuple[int, ...] = ()
    """The numbers of its heads, where others were pruned and would leave gaps; otherwise empty."""
    all_heads: int = 0
    """H, where it has `heads`."""
    labels: tuple[str, ...] = ()
    sequence_bytes: tuple[int, int, int] = (0, 0, 0)
    """The bytes n of one sequence, and powers p and q: n · T ** p · S ** q. 0 if they are not known."""

    @cached_property
    def is_fraction(self) -> bool:
        """Whether it holds weights or probabilities, which may come in any `Precision`."""
        return self.role in FRACTIONS

    @cached_property
    def datatypes(self) -> tuple[str, ...]:
        """The datatypes that it may have in the reply."""
        if self.is_fraction:
            return get_args(Precision)
        return ("FP32", "FP16") if self.datatype in {"FP32", "FP16"} else (self.datatype,)

    @cached_property
    def token_axes(self) -> list[int]:
        """The axes of T, counted without B."""
        return [axis for axis, dim in enumerate(self.dims[1:]) if dim == "T"]

    @cached_property
    def memory_axes(self) -> list[int]:
        """The axes of S, likewise."""
        return [axis for axis, dim in enumerate(self.dims[1:]) if dim == "S"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestedOutputs:
    """The outputs that a request asks for."""

    outputs: tuple[SelectedOutput, ...]
    heads: tuple[int, ...] | None = None
    """None means all."""
    queries: tuple[int, ...] | None = None
    """None means all."""
    rows: bool = False
    """Whether the queries are an input, and not selected from what is computed."""
    weighted: bool = False
    """Whether to return attention norm-weighted."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """See `Encoding`."""

    def with_role(self, role: str) -> Sequence[SelectedOutput]:
        """Return the outputs that have a role."""
        return self.by_role.get(role, ())

    def sequence_bytes(self, tokens: int, memory: int = 0) -> int:
        """Estimate the bytes of the outputs of one sequence with so many tokens, and tokens of its memory."""
        return sum(size * tokens**p * memory**q for size, p, q in self._sequence_bytes)

    @cached_property
    def by_role(self) -> Mapping[str, Sequence[SelectedOutput]]:
        """The outputs by role."""
        found: dict[str, list[SelectedOutput]] = {}
        for output in self.outputs:
            found.setdefault(output.role, []).append(output)
        return found

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the logits; None where there are none."""
        return next((output.labels for output in self.with_role(LOGITS)), None)

    @cached_property
    def _sequence_bytes(self) -> Sequence[tuple[int, int, int]]:
        return [output.sequence_bytes for output in self.outputs if output.sequence_bytes[0]]
