"""The arguments of `encode` that choose outputs, as the declarations of these read them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypedDict

from polyhead_client.errors import InvalidRequest
from polyhead_client.places import Edits, Reads
from polyhead_proto.datatypes import Precision
from polyhead_proto.names import DIMENSIONS, DTYPE, HEADS, LAYERS, PRECISION, QUERIES
from polyhead_proto.outputs import DECLARED
from polyhead_proto.outputs.attention import WEIGHTED, Weights
from polyhead_proto.outputs.pooled import VectorPrecision
from polyhead_proto.wants import (
    Indices,
    Output,
    Read,
    check_count,
    one_of,
    read_flag,
    read_given,
    read_indices,
)


class Wanted(TypedDict, total=False):
    """The arguments of `encode` that choose outputs, or select from them.

    Args:
        output: Whether to fetch the encoder's output.
        pooled: Whether to fetch the pooled output; None means if the model pools.
        logits: Whether to fetch the logits of a classifier; None means if the model is one.
        tokens: Whether to fetch the tokens as strings; None means for texts.
        spans: Whether to fetch where tokens are in the texts; see `Encoding.spans`.
        attention: True for the weights of every layer, or layer numbers (-1 is the last).
        cross_attention: Likewise the weights to the memory, of decoder blocks, which attend to both.
            Where layers attend to the memory alone, `attention` has these weights.
        weighted: Whether to return norm-weighted attention: weights times `value_norms`.
        value_norms: Whether to fetch the norms of each head's values, of the layers of `attention`.
        scores: Whether to fetch the scores of heads, such as their entropy; see `HeadScores`.
        rollout: Whether to fetch attention rollout.
        head_mix: Numbers [L, H] or [B, L, H] with which to sum the weights of all heads to one map,
            `Encoding.mixed`.
        contacts: Whether to fetch the probability of a contact of each pair of residues of a protein,
            from families that were exported with `--graphs contacts`.
        top: The number of strongest keys of each query to fetch, with their weights; see `TopKeys`.
        thumbnails: Whether to fetch small pictures of the weights of each head.
        sparse: Whether to fetch the words of the vocabulary that say most of a text, with their weights,
            or how many of them; see `SparseVectors`. From families exported with `--graphs sparse`.
        layers: The layers whose scores, strongest keys and thumbnails to fetch: 5, [0, 5] or range(3);
            None means all.
        heads: The heads whose weights, scores, strongest keys and thumbnails to fetch, likewise.
        queries: The positions whose rows of weights to fetch, likewise. If they are few, and the family
            has a graph for it, only these rows are computed.
        dtype: The datatype of weights and contacts on the wire: "FP32", "FP16" (half the bytes) or
            "UINT8" (a quarter; error up to 1/510). The result is float32 in any case.
        dimensions: How many dimensions pooled vectors are to have: their first ones, normalised again if
            the model normalises. Warns (`UserWarning`) if it does not say that it was trained for that.
        precision: Pooled vectors as integers, after any cut: "int8" or "uint8", one for each dimension,
            for families whose export measured their ranges; "binary" (int8) or "ubinary" (uint8), a bit
            for each. They are those of sentence-transformers' `quantize_embeddings`. None means float32.
        token_vectors: Whether to fetch the vectors of tokens that late interaction compares, of
            checkpoints that have them (ColBERT).
        query_vectors: Such vectors of a query, floats [S, V], to compare each text with:
            `Encoding.max_similarities`. For families that were exported with `--graphs maxsim`.
        similarities: Whether to fetch all similarities [S, T] with them, too.
        read: Places to read, `(layer, token)` of the residual stream or `(layer, token, head)` of what a
            head gives; see `Place`. For a batch, the same for all sequences, or a list of them for each.
            For families that were exported with `--graphs stream`, as `edits`.
        edits: `Edit`s of such places, likewise.
    """

    output: bool
    pooled: bool | None
    logits: bool | None
    tokens: bool | None
    spans: bool
    attention: bool | int | Sequence[int] | None
    cross_attention: bool | int | Sequence[int] | None
    weighted: bool
    value_norms: bool
    scores: bool
    rollout: bool
    head_mix: Any
    contacts: bool
    top: int | None
    thumbnails: bool
    sparse: bool | int
    layers: Indices | None
    heads: Indices | None
    queries: Indices | None
    dtype: Precision | None
    dimensions: int | None
    precision: VectorPrecision | None
    token_vectors: bool
    query_vectors: Any
    similarities: bool
    read: Reads | None
    edits: Edits | None


MOST_ROWS = 16
"""The number of queries up to which a graph computes only their rows, where the family has one."""

_OPTIONS: Mapping[str, Read] = MappingProxyType(
    {
        LAYERS: read_indices,
        HEADS: read_indices,
        QUERIES: read_indices,
        DTYPE: one_of(Precision),
        DIMENSIONS: check_count,
        PRECISION: one_of(VectorPrecision),
        WEIGHTED: read_flag,
    }
)

ARGUMENTS: Mapping[str, Read] = MappingProxyType(
    {**_OPTIONS, **{each.keyword: each.read for each in DECLARED.values() if each.keyword}}
)
"""What reads each of the arguments that choose outputs, or select from them."""

_TAKERS = {
    option: [each for each in DECLARED.values() if option in each.options]
    for option in sorted({option for each in DECLARED.values() for option in each.options})
}
"""The outputs that each option goes with."""

INPUTS = frozenset(each.keyword for each in DECLARED.values() if each.read is read_given)
"""The arguments whose values are inputs."""


def presence_of(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `encode` with True in place of what is an input."""
    return {name: value is not None if name in INPUTS else value for name, value in wanted.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What a call of `encode` asks of outputs."""

    given: Mapping[str, Any]
    """The arguments that were given."""
    text: bool
    """Whether the inputs are texts."""

    @classmethod
    def read(cls, arguments: Mapping[str, Any], *, text: bool) -> "Asked":
        """Read the arguments `Wanted` of `encode`, of which those that are inputs are True.

        Raises:
            TypeError: There is no such argument.
            InvalidRequest: One is not what it must be, or they do not go together, whatever the model.
        """
        if unknown := arguments.keys() - ARGUMENTS.keys():
            raise TypeError(f"encode() got an unexpected keyword argument '{min(unknown)}'")
        read = {name: ARGUMENTS[name](name, value) for name, value in arguments.items()}
        if not arguments.get("output", True):
            read["output"] = False
        asked = cls(given={name: value for name, value in read.items() if value is not None}, text=text)
        for option, takers in _TAKERS.items():
            if option in asked.given and not any(each.absent for each in takers):  # `select` checks those
                asked._check_use(option, takers)
        return asked

    @cached_property
    def roles(self) -> frozenset[str]:
        """The roles of the outputs and inputs that a graph must have."""
        roles = {each.role for each in DECLARED.values() if not each.absent and self._asks_for(each)}
        if WEIGHTED in self.given:
            roles |= {each.norms for role in roles if isinstance(each := DECLARED[role], Weights)}
        return frozenset(roles)

    @cached_property
    def alternatives(self) -> list[frozenset[str]]:
        """The roles of outputs that give what is asked for, the cheapest first."""
        queries = self.given.get(QUERIES)
        if queries is None or len(queries) > MOST_ROWS:
            return [self.roles]
        weights = {role: each.rows for role in self.roles if isinstance(each := DECLARED[role], Weights)}
        return [frozenset(weights.get(role, role) for role in self.roles), self.roles]

    def by_name(self, present: Mapping[str, Any]) -> Iterator[Output]:
        """Yield the outputs that are wanted of those that do not choose the graph.

        Args:
            present: The outputs that the graph has, by name.
        """
        for each in DECLARED.values():
            if each.absent:
                by_default = {"always": True, "present": each.role in present, "texts": self.text}
                if self.given.get(each.keyword, by_default.get(each.default, False)):
                    yield each

    def layers(self, output: Output) -> tuple[int, ...] | bool | None:
        """Return the layers of an output that are asked for; True or None means all."""
        layers: tuple[int, ...] | bool | None = self.given.get(output.layers_from, self.given.get(LAYERS))
        return layers

    def _asks_for(self, output: Output) -> bool:
        value = self.given.get(output.keyword)
        return output.role in value if isinstance(value, frozenset) else bool(value)

    def _check_use(self, option: str, takers: list[Output]) -> None:
        """Reject an option if nothing is asked for that it goes with."""
        if option == LAYERS and "attention" in self.given:  # whose layers value norms are of
            takers = [each for each in takers if each.layers_from == LAYERS]
        if not any(each.role in self.roles for each in takers):
            keywords = " or ".join(dict.fromkeys(each.keyword for each in takers))
            raise InvalidRequest(f"{option} goes with {keywords}, which was not asked for")
