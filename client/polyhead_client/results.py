"""The outputs of a request in the form of its inputs, by name; and the `Encoding` that is made of them.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from polyhead_client.encoding import OF_SEVERAL_OUTPUTS, Encoding, Timings
from polyhead_client.insight import HeadScores
from polyhead_client.padding import Arrays, InputForm
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_client.roles import ROLES, ROWS, OutputRole
from polyhead_proto.names import HEAD_SCORES, LOGITS, OUTPUT, POOLED, SPANS, WEIGHTED_SCORES

_ROLES = MappingProxyType(
    {name: OutputRole(name, name) for name in (OUTPUT, POOLED, LOGITS, SPANS)}
    | {**ROLES}
    | {rows: ROLES[role] for role, rows in ROWS.items()}
)
_NONE: Mapping[str, Any] = MappingProxyType({"output": None, "pooled": None, "attention": None})
"""The fields of `Encoding` without a default."""


@dataclass(kw_only=True, eq=False)
class Results:
    """The outputs of a request, or of several that were joined."""

    model: str
    version: str
    arrays: Mapping[str, Arrays]
    """All outputs but tokens and lengths."""
    tokens: list[str] | list[list[str]] | None
    lengths: NDArray[Any]
    """[B]."""
    heads: int
    """H; 0 where no output has such an axis, or `heads` selects from it."""
    timings: Mapping[str, int]
    """The server's, as `Timings` names them."""

    def encoding(self, requested: RequestedOutputs, form: InputForm, total_ns: int) -> Encoding:
        """Return them as the result of `encode`.

        Args:
            requested: The outputs of the request.
            form: The form of the inputs.
            total_ns: The duration of the call.
        """
        single = form is InputForm.SINGLE
        heads = requested.heads or tuple(range(self.heads)) or None
        return Encoding(
            model=self.model,
            version=self.version,
            labels=requested.labels,
            heads=heads,
            queries=requested.queries,
            tokens=self.tokens,
            lengths=int(self.lengths[0]) if single else self.lengths,
            timings=Timings(total_ns=total_ns, **self.timings),
            kept_heads=requested.kept_heads,
            weighted=requested.weighted,
            **{**_NONE, **self._fields(requested, heads or (), single)},
        )

    def _fields(self, requested: RequestedOutputs, heads: tuple[int, ...], single: bool) -> dict[str, Any]:
        """Return what an `Encoding` has of the outputs, by field."""
        found: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for name, outputs in requested.by_role.items():
            role = _ROLES.get(name)
            if role is None or role.field is None:
                continue
            array = self.arrays[outputs[0].name]
            if role.part is not None:
                parts.setdefault(role.field, {})[role.part] = array
            elif role.by_layer:
                found[role.field] = self._by_layer(outputs, single)
            elif name == HEAD_SCORES:
                weighted = self._scores(requested.with_role(WEIGHTED_SCORES), heads)
                found[role.field] = self._scores(outputs, heads, weighted)
            else:
                found[role.field] = array
        return found | {field: OF_SEVERAL_OUTPUTS[field](**values) for field, values in parts.items()}

    def _by_layer(self, outputs: Sequence[SelectedOutput], single: bool) -> Mapping[int, Arrays]:
        return MappingProxyType(
            {
                layer: _of_layer(self.arrays[output.name], output.layer_axis, index, single)
                for output in outputs
                for index, layer in enumerate(output.layers)
            }
        )

    def _scores(
        self, outputs: Sequence[SelectedOutput], heads: tuple[int, ...], weighted: HeadScores | None = None
    ) -> HeadScores | None:
        if not outputs:
            return None
        return HeadScores(
            values=self.arrays[outputs[0].name],
            names=outputs[0].labels,
            layers=tuple(outputs[0].layers),
            heads=heads,
            weighted=weighted,
        )


def _of_layer(arrays: Arrays, axis: int | None, index: int, single: bool) -> Arrays:
    """Take one layer; `axis` is counted with B, None where there is but one."""
    if axis is None:
        return arrays
    if isinstance(arrays, list):
        return [_of_layer(array, axis, index, True) for array in arrays]
    return arrays[(slice(None),) * (axis - single) + (index,)]
