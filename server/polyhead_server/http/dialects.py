"""What calls with texts may say, in the words of every API whose clients come: one table of fields.

A field is one of ours, another client's name for one (`Means`), or one that changes nothing here (`IGNORED`),
whose type holds no value that would. Replies name the latter in the header `x-polyhead-ignored`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from polyhead_server.errors import InvalidRequestError
from polyhead_server.http.fields import Body, Count, Evidence, Natural


def _check_false(given: bool) -> bool:
    if given:
        raise PydanticCustomError("literal_error", "Input should be false")
    return given


_False = Annotated[bool, AfterValidator(_check_false), WithJsonSchema({"const": False})]

_Right = Annotated[
    Literal["Right"],
    BeforeValidator(lambda given: "Right" if given == "right" else given),
    WithJsonSchema({"type": "string", "pattern": "^[Rr]ight$"}),
]

_UNNAMED = "default/not-specified"
"""What infinity's client names where its user has named no model."""
_Model = Annotated[str | None, AfterValidator(lambda given: None if given == _UNNAMED else given)]
_Dimensions = Annotated[Natural, AfterValidator(lambda given: given or None)] | None

_Query = Literal["query", "search_query", "retrieval.query"]
_Document = Literal["document", "passage", "search_document", "retrieval.passage"]
_Kind = _Query | _Document | Literal["classification", "clustering", "separation", "text-matching"]
PROMPTS: Mapping[str, Sequence[str]] = MappingProxyType(
    dict.fromkeys(get_args(_Query), ("query",))
    | dict.fromkeys(get_args(_Document), ("document", "passage", "corpus"))
)
"""By what clients say that texts are: the prompts that mean it, beside one of that name."""


@dataclass(frozen=True)
class Means:
    """Marks a field that says what another does."""

    field: str
    """Empty: it changes nothing."""


IGNORED = Means("")


class Options(Body):
    """Fields of which some are other clients' names for others."""

    @model_validator(mode="after")
    def _translate(self) -> Self:
        for name, mark in self._marked():
            if mark.field and getattr(self, mark.field) is not None:
                raise InvalidRequestError(f"{name} must be left out beside {mark.field}, which says the same")
            if mark != IGNORED:
                setattr(self, mark.field, getattr(self, name))
                setattr(self, name, None)
        return self

    @property
    def ignored(self) -> list[str]:
        """The fields that were given, and change nothing."""
        return [name for name, _ in self._marked()]

    def _marked(self) -> list[tuple[str, Means]]:
        return [(name, mark) for name, mark in _marks_of(type(self)) if getattr(self, name) is not None]


@cache
def _marks_of(kind: type[Options]) -> list[tuple[str, Means]]:
    return [
        (name, mark)
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Means)
    ]


class FamilyOptions(Options):
    """What every call may say."""

    model: _Model = None
    """The family; without, that of ?model=, of x-polyhead-model or of --default, or the only one that can"""
    user: Annotated[str | None, IGNORED] = None
    """Ignored"""
    priority: Annotated[Natural | None, IGNORED] = None
    """Ignored: x-request-priority has another order"""


class TextOptions(FamilyOptions):
    """What every call that computes something of texts may say."""

    truncate: bool | Literal["END", "NONE"] | None = None
    """Whether to cut texts that are too long; without, they are rejected. END: yes, on the right; NONE: no"""
    truncation: Annotated[bool | None, Means("truncate")] = None
    """Voyage's truncate, on the side where the family cuts"""
    truncation_direction: _Right | None = None
    """On which side texts are cut: rejected where the family cuts on the left"""

    @model_validator(mode="after")
    def _read_end(self) -> Self:
        if self.truncate == "END":
            self.truncate, self.truncation_direction = True, "Right"
        elif self.truncate == "NONE":
            self.truncate = False
        return self


class EmbeddingOptions(TextOptions):
    """What every call that embeds may say."""

    prompt_name: str | None = None
    """The prompt to put before each text"""
    input_type: _Kind | None = None
    """What the texts are, which names a prompt if the family has one, as Cohere, Voyage and NIM say it"""
    task: _Kind | None = None
    """Jina's input_type"""
    modality: Annotated[Literal["text"] | list[Literal["text"]] | None, IGNORED] = None
    """Ignored: nothing but text is embedded"""
    late_chunking: Annotated[_False | None, IGNORED] = None
    """Ignored: each text is embedded by itself"""


class VectorOptions(EmbeddingOptions):
    """What calls that embed in one vector may say."""

    dimensions: _Dimensions = None
    """How many of the first dimensions to return, normalised again; 0 is all of them"""
    output_dimension: Annotated[_Dimensions, Means("dimensions")] = None
    """Voyage's dimensions"""
    normalize: bool | None = None
    """Whether vectors get the length 1. /embed does it by default, others leave them as they are"""
    normalized: Annotated[bool | None, Means("normalize")] = None
    """Jina's normalize"""


class ScoringOptions(TextOptions):
    """What calls that give scores may say."""

    raw_scores: bool | None = None
    """Whether scores are logits: by default what TEI or transformers makes of these"""


class RankingOptions(ScoringOptions):
    """What every call that ranks texts may say."""

    query: str
    """What the texts may answer"""
    top_n: Count | None = None
    """The most results: all by default"""
    top_k: Annotated[Count | None, Means("top_n")] = None
    """Voyage's top_n"""
    return_evidence: Evidence = None
    """Whether to return the pairs of tokens that attend to each other most (8), or how many: 16384 in all"""
    max_tokens_per_doc: Count | None = None
    """Ignored where it can cut no document, rejected where it might"""
    max_chunks_per_doc: Annotated[Count | None, IGNORED] = None
    """Ignored: documents are not divided"""
    rank_fields: Annotated[
        list[Literal["text"]] | None, Field(fail_fast=True, min_length=1, max_length=1), IGNORED
    ] = None
    """Ignored: the text counts"""
