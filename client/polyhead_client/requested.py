"""The outputs that a request asks for, and what is selected from them.

Shape letters: B batch, T tokens, S tokens of a memory, H heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from polyhead_client.visibility import Visibility
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import DTYPE, LOGITS
from polyhead_proto.outputs import declared
from polyhead_proto.tensors import TensorSpec
from polyhead_proto.wants import Output


@dataclass(frozen=True, kw_only=True)
class SelectedOutput:
    """An output of a request, and what is selected from it."""

    tensor: TensorSpec
    datatype: str
    """In the model; the reply may convert it. Of vectors with a precision, that of the reply."""
    dims: tuple[str | int, ...]
    """The axes that it has in the reply: letters, and sizes where these are known to be those asked for."""
    parameters: tuple[tuple[str, str | int], ...] = ()
    layers: Sequence[int] = ()
    """The encoder's layers that it is of: one, or those along its axis of layers."""
    pruned_from: int = 0
    """H, where the reply has the heads that pruning left, and not a choice of them; otherwise 0."""

    @cached_property
    def name(self) -> str:
        """Its name in the request and the reply."""
        return self.tensor.name

    @cached_property
    def declared(self) -> Output:
        """What is known of its role."""
        return declared(self.tensor)

    @cached_property
    def datatypes(self) -> tuple[str, ...]:
        """The datatypes that it may have in the reply."""
        if self.declared.fractions:
            return ("FP32", "FP16", "UINT8")
        return ("FP32", "FP16") if self.datatype in {"FP32", "FP16"} else (self.datatype,)

    @cached_property
    def token_axes(self) -> list[int]:
        """The axes of T, counted without B."""
        return [axis for axis, dim in enumerate(self.dims[1:]) if dim == "T"]

    @cached_property
    def memory_axes(self) -> list[int]:
        """The axes of S, likewise."""
        return [axis for axis, dim in enumerate(self.dims[1:]) if dim == "S"]

    @cached_property
    def sequence_bytes(self) -> tuple[int, int, int]:
        """The bytes n of one sequence, and powers p and q: n · T ** p · S ** q; n is 0 if not known."""
        datatype = str(dict(self.parameters).get(DTYPE, self.datatype))
        size = DTYPES[datatype].itemsize if datatype in DTYPES else 0
        for dim in self.dims[1:]:
            if dim not in {"T", "S"}:
                size *= dim if isinstance(dim, int) else self.tensor.sizes.get(dim, 0)
        return size, self.dims.count("T"), self.dims.count("S")


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
    visibility: Visibility | None = None
    """What hides keys from queries; None means nothing but padding."""

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
            found.setdefault(output.declared.role, []).append(output)
        return found

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the logits; None where there are none."""
        return next((output.tensor.labels or () for output in self.with_role(LOGITS)), None)

    @cached_property
    def _sequence_bytes(self) -> Sequence[tuple[int, int, int]]:
        return [output.sequence_bytes for output in self.outputs if output.sequence_bytes[0]]
