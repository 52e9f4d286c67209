"""Fields of bodies and headers: what they may hold, and what a caller is told who sends something else.

pydantic checks bodies, and the OpenAPI document is made of what it checks. A list that may be long is read up
to its first wrong element: an error for each would take seconds.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from polyhead_proto.faults import Fault
from polyhead_proto.outputs.evidence import DEFAULT_PAIRS
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


def all_whole(given: Any) -> Any:
    """Return token ids as whole numbers. There may be a million, of which none is looked at without need."""
    is_mixed = isinstance(given, list) and float in set(map(type, given))
    return [_whole(one) for one in given] if is_mixed else given


def _listed(given: Any) -> Any:
    """Return one input as a list of one."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


_Ids = Annotated[
    list[Annotated[int, Field(ge=0, le=MOST)]],
    Field(fail_fast=True, min_length=1),
    BeforeValidator(all_whole),
]
_Rows = Annotated[list[_Ids], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]
Given = str | Texts | _Ids | _Rows
Inputs = Annotated[Given, AfterValidator(_listed)]
"""What is embedded: B texts, or B lists of token ids."""

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
