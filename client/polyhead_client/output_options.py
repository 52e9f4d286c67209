"""The arguments of `encode` that choose outputs, and whether they go together, whatever the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, get_args

from polyhead_client.arguments import (
    check_count,
    check_flag,
    read_flag_or_count,
    read_indices,
    read_layers,
)
from polyhead_client.errors import InvalidRequest
from polyhead_client.roles import ROLES, ROWS
from polyhead_proto.datatypes import Precision
from polyhead_proto.names import ATTENTION, CROSS_ATTENTION, CROSS_VALUE_NORMS, VALUE_NORMS
from polyhead_proto.outputs.vectors import VectorPrecision

MOST_ROWS = 16
"""The number of queries up to which a graph computes only their rows, where the family has one."""

MOST_SELECTIONS = 256
"""The selections that are kept, because a program asks for few different ones again and again."""

_READERS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        "attention": read_layers,
        "cross_attention": read_layers,
        "top": check_count,
        "dimensions": check_count,
        "sparse": read_flag_or_count,
        "layers": read_indices,
        "heads": read_indices,
        "queries": read_indices,
    }
)
"""What reads the arguments that callers may spell in several ways."""


@dataclass(kw_only=True, eq=False)
class OutputOptions:
    """The arguments of `encode` that choose outputs; see there.

    Raises:
        InvalidRequest: They do not go together, whatever the model.
    """

    text: bool
    output: bool = True
    pooled: bool | None = None
    logits: bool | None = None
    tokens: bool | None = None
    spans: bool = False
    attention: tuple[int, ...] | bool = False
    """Layers; True means all."""
    cross_attention: tuple[int, ...] | bool = False
    weighted: bool = False
    value_norms: bool = False
    scores: bool = False
    rollout: bool = False
    head_mix: bool = False
    contacts: bool = False
    top: int | None = None
    thumbnails: bool = False
    sparse: bool | int = False
    """True means all words that the graph returns, a number the most of them."""
    token_vectors: bool = False
    query_vectors: bool = False
    similarities: bool = False
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    dtype: Precision | None = None
    dimensions: int | None = None
    precision: VectorPrecision | None = None
    reads: int = 0
    """The places to read of the stream."""
    head_reads: int = 0
    """The places to read of what heads give."""
    edits: bool = False
    """Whether the graph must take edits."""
    roles: frozenset[str] = field(init=False)
    """The roles of all outputs and inputs that are asked for, but those that every graph has."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.type in (bool, bool | None):
                check_flag(each.name, getattr(self, each.name), optional=each.type is not bool)
        roles = {name for name, role in ROLES.items() if self._is_given(role.option or role.argument)}
        roles.discard(CROSS_VALUE_NORMS)
        if self.weighted:
            norms = {ATTENTION: VALUE_NORMS, CROSS_ATTENTION: CROSS_VALUE_NORMS}
            roles |= {norms[role] for role in norms.keys() & roles}
        self.roles = frozenset(roles)
        for name in sorted({name for role in ROLES.values() for name in role.with_options}):
            self._check_use(name)
        for name, kind in (("precision", VectorPrecision), ("dtype", Precision)):
            if (value := getattr(self, name)) is not None and value not in get_args(kind):
                raise InvalidRequest(f"{name} must be one of {', '.join(get_args(kind))}, was {value!r}")

    @property
    def alternatives(self) -> list[frozenset[str]]:
        """The roles of outputs that give what is asked for, the cheapest first."""
        if self.queries is not None and len(self.queries) <= MOST_ROWS:
            return [frozenset(ROWS.get(role, role) for role in self.roles), self.roles]
        return [self.roles]

    def _is_given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value is not False and value != 0

    def _check_use(self, name: str) -> None:
        """Reject an option if nothing is asked for that it goes with."""
        arguments = {role: ROLES[role].argument for role in ROLES if name in ROLES[role].with_options}
        if name == "layers" and ATTENTION in self.roles:
            del arguments[VALUE_NORMS]  # which are of the layers of attention then
        if self._is_given(name) and not self.roles & arguments.keys():
            asked = " or ".join(dict.fromkeys(arguments.values()))
            raise InvalidRequest(f"{name} goes with {asked}, which was not asked for")


_kept_options = lru_cache(MOST_SELECTIONS, typed=True)(OutputOptions)


def read_options(**arguments: Any) -> OutputOptions:
    """Return `OutputOptions` of arguments as `encode` takes them: the same for the same, checked but once.

    Raises:
        InvalidRequest: One is not what it must be, or they do not go together.
    """
    arguments |= {name: read(name, arguments[name]) for name, read in _READERS.items() if name in arguments}
    try:
        return _kept_options(**arguments)
    except TypeError:  # one cannot be hashed, and so is not valid
        return OutputOptions(**arguments)


OPTIONS = tuple(each.name for each in fields(OutputOptions) if each.init)
"""The names of all options. Most are those of arguments of `encode`."""
