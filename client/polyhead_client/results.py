"""The outputs of a request in the form of its inputs, by name; and the `Encoding` that is made of them.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from polyhead_client.batch import Arrays, InputForm
from polyhead_client.encoding import OF_SEVERAL_OUTPUTS, Encoding, Timings
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_proto.outputs.head_scores import HEAD_SCORES, WEIGHTED_SCORES, HeadScores

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
        found: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for role, outputs in requested.by_role.items():
            declared, array = outputs[0].declared, self.arrays.get(outputs[0].name)
            if declared.by_layer:
                found[declared.field] = self._by_layer(outputs, single)
            elif role in {HEAD_SCORES.role, WEIGHTED_SCORES.role}:
                parts.setdefault(declared.field, {})[declared.part] = self._scores(outputs[0], heads or ())
            elif declared.part:
                parts.setdefault(declared.field, {})[declared.part] = array
            elif declared.field:
                found[declared.field] = array
        if scores := parts.pop(HEAD_SCORES.field, None):
            found[HEAD_SCORES.field] = replace(scores["values"], weighted=scores["weighted"])
        for field, values in parts.items():
            found[field] = OF_SEVERAL_OUTPUTS[field](**values)
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
            **{**_NONE, **found},
        )

    def _by_layer(self, outputs: Sequence[SelectedOutput], single: bool) -> Mapping[int, Arrays]:
        return MappingProxyType(
            {
                layer: _of_layer(self.arrays[output.name], output.tensor.layer_axis, index, single)
                for output in outputs
                for index, layer in enumerate(output.layers)
            }
        )

    def _scores(self, output: SelectedOutput, heads: tuple[int, ...]) -> HeadScores:
        return HeadScores(
            values=self.arrays[output.name],
            names=output.tensor.labels or (),
            layers=tuple(output.layers),
            heads=heads,
        )


def _of_layer(arrays: Arrays, axis: int | None, index: int, single: bool) -> Arrays:
    """Take one layer; `axis` is counted with B, None where there is but one."""
    if axis is None:
        return arrays
    if isinstance(arrays, list):
        return [_of_layer(array, axis, index, True) for array in arrays]
    return arrays[(slice(None),) * (axis - single) + (index,)]
