"""The arguments of `encode` that choose outputs, as the declarations of these read them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from polyhead_client.errors import InvalidRequest
from polyhead_proto.datatypes import Precision
from polyhead_proto.names import DIMENSIONS, DTYPE, HEADS, LAYERS, PRECISION, QUERIES
from polyhead_proto.outputs import DECLARED
from polyhead_proto.outputs.attention import WEIGHTED, Weights
from polyhead_proto.outputs.pooled import VectorPrecision
from polyhead_proto.wants import Output, Read, check_count, one_of, read_flag, read_given, read_indices

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
