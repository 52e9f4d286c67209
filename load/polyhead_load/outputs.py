"""Choose what is fetched of each reply: pooled vectors, logits, vectors of tokens or attention.

It decides which graph runs and what crosses the wire. A search product fetches 1.5 KiB of pooled vector for a
text whose vectors of tokens have 50 KiB, so a measurement is of one such choice.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import ConfigDict

from polyhead_client import ModelInfo
from polyhead_client.asked import Asked
from polyhead_client.errors import InvalidRequest
from polyhead_client.options import parse_indices
from polyhead_load.errors import LoadError
from polyhead_proto.datatypes import Precision
from polyhead_proto.names import LAYERS
from polyhead_proto.outputs import DECLARED
from polyhead_proto.wants import check_count, read_given, read_layers

_OPTIONS = frozenset[str]().union(*(each.options for each in DECLARED.values()))

OUTPUT_NAMES = tuple(
    dict.fromkeys(
        each.keyword
        for each in DECLARED.values()
        if each.keyword
        and each.made is None
        and each.keyword not in _OPTIONS
        and each.read not in {read_given, check_count}
    )
)
"""The arguments of `Client.encode` that ask for what a graph computes, and need nothing else."""

_BY_LAYER = {each.keyword for each in DECLARED.values() if each.read is read_layers}
"""Those that may be layers."""

_OF_LAYERS = {
    each.keyword for each in DECLARED.values() if LAYERS in each.options and each.layers_from == LAYERS
}
"""Outputs whose layers `encode` takes as an argument of their own."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The outputs that a request asks for, and what is selected of them.

    Raises:
        LoadError: They do not go together.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str = ""
    """What a report calls them; empty for the names of what is fetched."""
    fetch: tuple[str, ...] = ()
    """Empty: pooled where the family has it, else logits, else output."""
    layers: tuple[int, ...] | None = None
    """The layers whose attention, scores or thumbnails are fetched; None is all."""
    heads: str | None = None
    """Their heads, such as 3, 0,3 or 0:4; None is all."""
    queries: str | None = None
    """The rows of their attention, likewise."""
    dtype: Precision | None = None
    """Datatype of weights on the wire."""

    def __post_init__(self) -> None:
        if len(set(self.fetch)) < len(self.fetch) or set(self.fetch) - set(OUTPUT_NAMES):
            raise LoadError(
                f"outputs must be of {', '.join(OUTPUT_NAMES)}, joined by +, was {'+'.join(self.fetch)!r}"
            )
        try:
            Asked.read(self.arguments, text=False)
        except InvalidRequest as error:
            raise LoadError(str(error)) from error

    def __str__(self) -> str:
        return self.name or "+".join(self.fetch) or "default"

    def of(self, info: ModelInfo) -> "Outputs":
        """Return the outputs of a family: the same, or those that its callers usually fetch."""
        if self.fetch:
            return self
        usual = next((name for name in ("pooled", "logits") if name in info.outputs), "output")
        return replace(self, fetch=(usual,))

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Client.encode` that fetch these outputs and nothing else."""
        asked: dict[str, Any] = {name: name in self.fetch for name in OUTPUT_NAMES}
        indices = {"heads": self.heads, "queries": self.queries}
        asked |= {name: None if one is None else parse_indices(name, one) for name, one in indices.items()}
        asked |= {"tokens": False, "layers": self.layers, "dtype": self.dtype}
        if self.layers is not None and (own := _BY_LAYER.intersection(self.fetch)):
            asked |= dict.fromkeys(own, self.layers)
            if not _OF_LAYERS & set(self.fetch):
                asked["layers"] = None
        return asked


DEFAULT_OUTPUTS = Outputs()


def parse_outputs(spelled: str, **selected: Any) -> Outputs:
    """Parse names that are joined by +, such as `output+attention`; nothing and `default` are the default.

    Raises:
        LoadError: One is unknown, or `selected` does not go with them.
    """
    names: Any = () if spelled in {"", "default"} else tuple(spelled.split("+"))
    return Outputs(fetch=names, **selected)
