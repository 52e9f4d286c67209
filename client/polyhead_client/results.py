"""The outputs of a request in the form of its inputs, by name; and the `Encoding` that is made of them.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from polyhead_client.encoding import Encoding, Timings
from polyhead_client.insight import HeadScores, TopKeys
from polyhead_client.padding import Arrays, InputForm
from polyhead_client.selection import RequestedOutputs, SelectedOutput
from polyhead_client.sparse import SparseVectors
from polyhead_proto.names import (
    ATTENTION,
    ATTENTION_ROWS,
    CONTACTS,
    CROSS_ATTENTION,
    CROSS_ATTENTION_ROWS,
    HEAD_OUTPUTS,
    HEAD_SCORES,
    LENGTHS,
    LOGITS,
    MAX_SIMILARITIES,
    MIXED,
    OUTPUT,
    POOLED,
    ROLLOUT,
    SIMILARITIES,
    SPANS,
    SPARSE_INDICES,
    SPARSE_VALUES,
    STREAM,
    THUMBNAILS,
    TOKEN_VECTORS,
    TOKENS,
    TOP_KEYS,
    TOP_WEIGHTS,
    VALUE_NORMS,
    WEIGHTED_SCORES,
)

_PLAIN = frozenset({OUTPUT, POOLED, LOGITS, TOKENS, SPANS, LENGTHS})
"""The roles of outputs that are not about attention, heads or layers."""

_NO_DETAILS: Mapping[str, Any] = MappingProxyType({"attention": None})


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
        by_role = requested.by_role
        heads = requested.heads or tuple(range(self.heads)) or None
        return Encoding(
            model=self.model,
            version=self.version,
            output=self._first(by_role.get(OUTPUT)),
            pooled=self._first(by_role.get(POOLED)),
            logits=self._first(by_role.get(LOGITS)),
            labels=requested.labels,
            heads=heads,
            queries=requested.queries,
            tokens=self.tokens,
            spans=self._first(by_role.get(SPANS)),
            lengths=int(self.lengths[0]) if single else self.lengths,
            timings=Timings(total_ns=total_ns, **self.timings),
            kept_heads=requested.kept_heads,
            weighted=requested.weighted,
            **(_NO_DETAILS if by_role.keys() <= _PLAIN else self._details(requested, heads or (), single)),
        )

    def _first(self, outputs: Sequence[SelectedOutput] | None) -> Any:
        """Return the first output of a role; None if there is none."""
        return self.arrays.get(outputs[0].name) if outputs else None

    def _details(self, requested: RequestedOutputs, heads: tuple[int, ...], single: bool) -> dict[str, Any]:
        """Return what an `Encoding` has of attention, heads and layers."""
        by_role = requested.by_role

        def of_layers(*roles: str) -> Mapping[int, Arrays] | None:
            by_layer = {
                layer: _of_layer(self.arrays[output.name], output.layer_axis, index, single)
                for role in roles
                for output in requested.with_role(role)
                for index, layer in enumerate(output.layers)
            }
            return MappingProxyType(by_layer) if by_layer else None

        def scores(role: str, weighted: HeadScores | None = None) -> HeadScores | None:
            outputs = requested.with_role(role)
            if not outputs:
                return None
            return HeadScores(
                values=self.arrays[outputs[0].name],
                names=outputs[0].labels,
                layers=tuple(outputs[0].layers),
                heads=heads,
                weighted=weighted,
            )

        keys = self._first(by_role.get(TOP_KEYS))
        words = self._first(by_role.get(SPARSE_INDICES))
        return {
            "attention": of_layers(ATTENTION, ATTENTION_ROWS),
            "cross_attention": of_layers(CROSS_ATTENTION, CROSS_ATTENTION_ROWS),
            "value_norms": of_layers(VALUE_NORMS),
            "scores": scores(HEAD_SCORES, scores(WEIGHTED_SCORES)),
            "rollout": self._first(by_role.get(ROLLOUT)),
            "mixed": self._first(by_role.get(MIXED)),
            "contacts": self._first(by_role.get(CONTACTS)),
            "top": None
            if keys is None
            else TopKeys(keys=keys, weights=self._first(by_role.get(TOP_WEIGHTS))),
            "thumbnails": self._first(by_role.get(THUMBNAILS)),
            "sparse": None
            if words is None
            else SparseVectors(indices=words, values=self._first(by_role.get(SPARSE_VALUES))),
            "token_vectors": self._first(by_role.get(TOKEN_VECTORS)),
            "max_similarities": self._first(by_role.get(MAX_SIMILARITIES)),
            "similarities": self._first(by_role.get(SIMILARITIES)),
            "stream": self._first(by_role.get(STREAM)),
            "head_outputs": self._first(by_role.get(HEAD_OUTPUTS)),
        }


def _of_layer(arrays: Arrays, axis: int | None, index: int, single: bool) -> Arrays:
    """Take one layer; `axis` is counted with B, None where there is but one."""
    if axis is None:
        return arrays
    if isinstance(arrays, list):
        return [_of_layer(array, axis, index, True) for array in arrays]
    return arrays[(slice(None),) * (axis - single) + (index,)]
