"""The roles of outputs: which argument of `encode` asks for them, and where they go in `Encoding`.

A new role of outputs is a line here, an argument of `encode`, an option of `OutputOptions`, and a field of
`Encoding`. What every graph has, `polyhead_client.selection` chooses by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from polyhead_proto.names import (
    ATTENTION,
    ATTENTION_ROWS,
    CONTACTS,
    CROSS_ATTENTION,
    CROSS_ATTENTION_ROWS,
    CROSS_VALUE_NORMS,
    EDIT_VECTORS,
    HEAD_OUTPUTS,
    HEAD_SCORES,
    MAX_SIMILARITIES,
    MIXED,
    ROLLOUT,
    SIMILARITIES,
    SPARSE_INDICES,
    SPARSE_VALUES,
    STREAM,
    THUMBNAILS,
    TOKEN_VECTORS,
    TOP_KEYS,
    TOP_WEIGHTS,
    VALUE_NORMS,
)


@dataclass(frozen=True)
class OutputRole:
    """A role of outputs, or of an input that only some graphs have."""

    argument: str
    """Of `encode`, which asks for them."""
    field: str | None = None
    """Of `Encoding`, which they fill."""
    part: str | None = None
    """What they are of the field's value, where that has outputs of several roles."""
    option: str | None = None
    """Of `OutputOptions`; None: that of the argument's name."""
    by_layer: bool = False
    """Whether the field has them by layer."""
    with_options: frozenset[str] = frozenset()
    """The options that go with them."""
    counted_axis: int | None = None
    """The axis of which the option says how many there are, unless it is True."""
    source: str | None = None
    """What gives a family such outputs, if not the insight graph."""


_OF_WEIGHTS = frozenset({"weighted", "queries", "heads", "dtype"})
_OF_HEADS = frozenset({"heads", "layers"})
_SPARSE = "polyhead export --graphs sparse adds one, if the checkpoint is SPLADE's"
_MAXSIM = "polyhead export --graphs maxsim adds one, for checkpoints of late interaction"
_CONTACTS = "polyhead export --graphs contacts adds one, if the checkpoint predicts them"
_VECTORS = "checkpoints of late interaction have them, such as ColBERT's"
_STREAM = "polyhead export --graphs stream adds one"

ROLES: Mapping[str, OutputRole] = MappingProxyType(
    {
        ATTENTION: OutputRole("attention", "attention", by_layer=True, with_options=_OF_WEIGHTS),
        CROSS_ATTENTION: OutputRole(
            "cross_attention", "cross_attention", by_layer=True, with_options=_OF_WEIGHTS
        ),
        VALUE_NORMS: OutputRole("value_norms", "value_norms", by_layer=True, with_options=_OF_HEADS),
        CROSS_VALUE_NORMS: OutputRole("weighted"),
        HEAD_SCORES: OutputRole("scores", "scores", with_options=_OF_HEADS),
        ROLLOUT: OutputRole("rollout", "rollout"),
        MIXED: OutputRole("head_mix", "mixed"),
        CONTACTS: OutputRole("contacts", "contacts", with_options=frozenset({"dtype"}), source=_CONTACTS),
        TOP_KEYS: OutputRole("top", "top", "keys", with_options=_OF_HEADS, counted_axis=-1),
        TOP_WEIGHTS: OutputRole("top", "top", "weights", counted_axis=-1),
        THUMBNAILS: OutputRole("thumbnails", "thumbnails", with_options=_OF_HEADS),
        SPARSE_INDICES: OutputRole("sparse", "sparse", "indices", counted_axis=-1, source=_SPARSE),
        SPARSE_VALUES: OutputRole("sparse", "sparse", "values", counted_axis=-1, source=_SPARSE),
        TOKEN_VECTORS: OutputRole("token_vectors", "token_vectors", source=_VECTORS),
        MAX_SIMILARITIES: OutputRole(
            "query_vectors", "max_similarities", with_options=frozenset({"similarities"}), source=_MAXSIM
        ),
        SIMILARITIES: OutputRole("similarities", "similarities", source=_MAXSIM),
        STREAM: OutputRole("read", "stream", option="reads", counted_axis=-2, source=_STREAM),
        HEAD_OUTPUTS: OutputRole(
            "read", "head_outputs", option="head_reads", counted_axis=-2, source=_STREAM
        ),
        EDIT_VECTORS: OutputRole("edits", source=_STREAM),
    }
)

ROWS: Mapping[str, str] = MappingProxyType({ATTENTION: ATTENTION_ROWS, CROSS_ATTENTION: CROSS_ATTENTION_ROWS})
"""The roles of the weights of all queries, each with that of the rows of some queries."""
