"""Fields of bodies: what they may hold, and what a caller is told who sends something else.

pydantic checks bodies, and the OpenAPI document is made of what it checks. A list that may be long is read up
to its first wrong element: an error for each would take seconds.

What calls with texts may say is one table, in the words of every API whose clients come. A field of it is one
of ours, another client's name for one (`Means`), or one that changes nothing here (`IGNORED`), whose type
holds no value that would. Replies name the latter in the header `x-polyhead-ignored`.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from polyhead_proto.faults import Fault
from polyhead_proto.outputs.evidence import DEFAULT_PAIRS
from polyhead_proto.outputs.tagging import AggregationStrategy
from polyhead_server.errors import InvalidRequestError, listed, quoted, shorten

MOST_INPUTS = 2048
"""As many as OpenAI takes in a call."""

MOST_PAIRS = MOST_INPUTS * DEFAULT_PAIRS
"""Of evidence, for all texts of a call: some 2 MiB of JSON."""

_UNKNOWN = "unknown_field"
_NAMES: Mapping[type, str] = {list: "an array", dict: "an object"}
_KINDS: Mapping[str, str] = {
    "dict_type": "must be an object",
    "int_type": "must be a whole number",
    "is_instance_of": "must be an array",
    "list_type": "must be an array",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "none_required": "must be left out, or null",
}
"""What pydantic says in words of Python."""
_COUNTED = " after validation, not "
"""Between what it says of a list's length, and the length."""


class Body(BaseModel):
    """What every object in a body has in common: types are not converted, and all fields are known."""

    model_config = ConfigDict(
        extra="forbid", strict=True, protected_namespaces=(), use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        """Reject the first field that is not known."""
        if isinstance(value, dict):
            for name in value:
                if name not in cls.model_fields:
                    known = listed(cls.model_fields)
                    raise PydanticCustomError(_UNKNOWN, "unknown", {"name": name, "known": known})
        return value


def invalid(error: RequestValidationError) -> InvalidRequestError:
    """Return an error that says where a request is wrong, what must stand there and what stood."""
    errors: Sequence[Mapping[str, Any]] = error.errors()
    of_field = [one for one in errors if one["loc"][:2] == errors[0]["loc"][:2]]
    # Several, where each member of a union says what it takes: best one that takes values of this type.
    apt = [one for one in of_field if not one["type"].endswith("_type")] or of_field
    path = max((_path_of(one["loc"], error.body) for one in apt), key=len)
    first, *others = (one for one in apt if _path_of(one["loc"], error.body) == path)
    kind, limits = first["type"], first.get("ctx", {})
    if kind == "missing":
        _, *whole = first["loc"]
        problem = f"must have the field {whole[-1]}" if whole else "must have a body of JSON, had none"
    elif kind == _UNKNOWN:
        known, name = limits["known"], quoted(limits["name"])
        problem = f"is not known; there are {known}"
        return InvalidRequestError(Fault(aspect=f"field {name} of ", field=_place(path), problem=problem))
    else:
        words = " or ".join(dict.fromkeys(map(_words, (first, *others)))).replace(" or must be ", " or ")
        _, is_count, count = first["msg"].partition(_COUNTED)
        problem = f"{words}, had {count}" if is_count else f"{words}, was {shown(first['input'])}"
    return InvalidRequestError(Fault(field=_place(path), problem=problem))


def _path_of(location: Sequence[int | str], body: Any) -> list[int | str]:
    """Return the steps to a place of a body, without the names that pydantic gives to members of unions."""
    where, *steps = location
    if where != "body":
        return steps
    path = []
    for step in steps:
        with suppress(LookupError, TypeError):
            body = body[step]
            path.append(step)
    return path


def _words(error: Mapping[str, Any]) -> str:
    """Say what a place must hold."""
    words = re.sub(r"^\w+ should", "must", error["msg"].partition(_COUNTED)[0]).replace("valid ", "")
    return _KINDS.get(error["type"], words)


def shown(value: object) -> str:
    """Show a caller's value in a message."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | dict):
        return _NAMES[type(value)]
    return shorten(orjson.dumps(value).decode())


def _place(path: Sequence[object]) -> str:
    """Name a place of a document, such as `inputs[0].name`."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{shorten(str(step))}" for step in path)
    return place.removeprefix(".") or "the request"


# ---- Types of fields ---------------------------------------------------------------------------

MOST = 2**53
"""The largest whole number: all up to it are exact, also for clients to which numbers are doubles."""


def _whole(given: Any) -> Any:
    """Return what JSON writes as 2.0, and counts as whole, as a whole number."""
    return int(given) if isinstance(given, float) and given.is_integer() and abs(given) <= MOST else given


Natural = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_whole)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]
"""Texts of which each is an input."""


def _all_whole(given: Any) -> Any:
    """Return token ids as whole numbers. There may be a million, of which none is looked at without need."""
    is_mixed = isinstance(given, list) and float in set(map(type, given))
    return [_whole(one) for one in given] if is_mixed else given


def _listed(given: Any) -> Any:
    """Return one input as a list of one."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


Ids = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**32)]],
    Field(fail_fast=True, min_length=1),
    BeforeValidator(_all_whole),
]
"""Token ids, as large as tokenisers take them."""
IdRows = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]
Given = str | Texts | Ids | IdRows
Inputs = Annotated[Given, AfterValidator(_listed)]
"""What is embedded: B texts, or B lists of token ids."""

SomeTexts = Annotated[str | Texts, AfterValidator(_listed)]
"""A text, or texts."""

Evidence = bool | Annotated[int, Field(ge=1, le=MOST_PAIRS), BeforeValidator(_whole)] | None
"""Whether to return evidence, or how many pairs of tokens of it."""


class Described(BaseModel):
    """What every object in a reply has in common."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Usage(Described):
    """What a call has cost."""

    prompt_tokens: int
    """Special tokens included"""
    total_tokens: int


def usage_of(tokens: int) -> dict[str, int]:
    """Return a `Usage` as JSON has it."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


# ---- What calls with texts may say ---------------------------------------------------------------


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
        marks = _marks_of(type(self))
        if marks.keys().isdisjoint(self.model_fields_set):  # as in most calls
            return []
        return [(name, mark) for name, mark in marks.items() if getattr(self, name) is not None]


@cache
def _marks_of(kind: type[Options]) -> dict[str, Means]:
    return {
        name: mark
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Means)
    }


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


class LabelParameters(Body):
    """How texts or tokens are labelled, in the words of Hugging Face's inference API."""

    top_k: Count | None = None
    """Of texts: the most labels of each, all by default"""
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    """Of texts: what makes scores of logits, by default what the checkpoint's library takes"""
    aggregation_strategy: AggregationStrategy | None = None
    """Of tokens: what gets one label, simple by default"""
    ignore_labels: Annotated[list[str], Field(fail_fast=True, max_length=4096)] | None = None
    """Of tokens: the labels to leave out, O by default"""
