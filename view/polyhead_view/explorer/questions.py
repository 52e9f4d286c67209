"""What the page asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from polyhead_client import InvalidRequest

_MOST_SILENCED = 65_536
MOST_TOKENS = 512
"""The longest sequence that is made up."""

WHOLE: Mapping[str, str] = MappingProxyType({"rollout": "insight", "contacts": "contacts"})
"""Maps of all heads together → the graph that gives each."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the page asks about: a sentence, a pair of texts, or two sentences, with some heads silenced."""

    model: str
    text: str = ""
    pair: str = ""
    """The second text of a pair, which is one input with `text`."""
    other: str = ""
    """The sentence to compare with."""
    truncate: bool = False
    silenced: tuple[tuple[int, int], ...] = ()
    """Layer and head of each."""
    layer: int = 0
    head: int = 0
    token: int = 0
    """The place to patch, with the layer."""
    weighted: bool = False
    cross: bool = False
    """Whether attention is that to the memory, where layers have both."""
    length: int = 16
    """T of vectors that are made up."""
    whole: str = ""
    """Which of `WHOLE` it is about, instead of a head."""

    @classmethod
    def read(cls, sent: Any) -> "Question":
        """Read what the page sent, after JSON.

        Raises:
            InvalidRequest: It is not a question; the message names the field.
        """
        if not isinstance(sent, dict) or not sent.keys() <= cls.__dataclass_fields__.keys():
            raise InvalidRequest(f"a question must be an object of {', '.join(cls.__dataclass_fields__)}")
        for name, field in cls.__dataclass_fields__.items():
            kind = field.type
            if name in sent and isinstance(kind, type) and type(sent[name]) is not kind:
                raise InvalidRequest(
                    f"{name} must be of type {kind.__name__}, was {type(sent[name]).__name__}"
                )
        if not sent.get("model"):
            raise InvalidRequest("a question must name a model")
        if sent.get("whole", "") not in {"", *WHOLE}:
            raise InvalidRequest(f"whole must be one of {', '.join(WHOLE)}, was {sent['whole']!r:.80}")
        if not 1 <= sent.get("length", 1) <= MOST_TOKENS:
            raise InvalidRequest(f"length must be between 1 and {MOST_TOKENS}, was {sent['length']}")
        for name in ("layer", "head", "token"):
            if sent.get(name, 0) < 0:
                raise InvalidRequest(f"{name} must be at least 0, was {sent[name]}")
        pairs = sent.get("silenced", [])
        if not (
            isinstance(pairs, list)
            and len(pairs) <= _MOST_SILENCED
            and all(isinstance(pair, list) and [type(at) for at in pair] == [int, int] for pair in pairs)
        ):
            raise InvalidRequest("silenced must be a list of [layer, head]")
        return cls(**{**sent, "silenced": tuple(map(tuple, pairs))})
