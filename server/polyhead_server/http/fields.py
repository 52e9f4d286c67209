"""Fields of bodies and headers: what they may hold, and what a caller is told who sends something else.

pydantic checks bodies, and the OpenAPI document is made of what it checks. A list that may be long is read by
a function of ours, or up to its first wrong element: an error for each would take seconds.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from polyhead_proto.outputs.evidence import DEFAULT_PAIRS
from polyhead_server.errors import InvalidRequestError, listed, quoted, shorten

MOST_INPUTS = 2048
"""As many as OpenAI takes in a call."""

MOST_PAIRS = MOST_INPUTS * DEFAULT_PAIRS
"""Of evidence, for all texts of a call: some 2 MiB of JSON."""

_MUST = "must"
_UNKNOWN = "unknown_field"
_NAMES: Mapping[type, str] = {list: "an array", dict: "an object"}
_KINDS: Mapping[str, str] = {
    "dict_type": "must be an object",
    "int_type": "must be a whole number",
    "list_type": "must be an array",
    "model_attributes_type": "must be an object",
    "none_required": "must be left out, or null",
}
"""What pydantic says in words of Python."""


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


def must(problem: str, *at: int | str) -> PydanticCustomError:
    """Return an error for a validator to raise.

    Args:
        problem: What follows the name of what is wrong: what it must be, and what it was.
        at: Where it is in what is validated.
    """
    return PydanticCustomError(_MUST, "must", {"problem": problem, "at": at})


def invalid(error: RequestValidationError) -> InvalidRequestError:
    """Return an error that says where a request is wrong, what must stand there and what stood."""
    first: Mapping[str, Any] = error.errors()[0]
    kind, given, limits = first["type"], first["input"], first.get("ctx", {})
    _, *path = first["loc"]
    if kind == "missing":
        name = path.pop() if path else None
        problem = f"must have the field {name}" if name else "must have a body of JSON, had none"
    elif kind == _UNKNOWN:
        known, name = limits["known"], quoted(limits["name"])
        return InvalidRequestError(f"field {name} of {_place(path)} is not known; there are {known}")
    elif kind == _MUST:
        path, problem = [*path, *limits["at"]], limits["problem"]
    else:
        words = re.sub(r"^\w+ should", "must", first["msg"]).replace("valid ", "")
        words, is_count, count = words.partition(" after validation, not ")
        problem = f"{_KINDS.get(kind, words)}, {f'had {count}' if is_count else f'was {shown(given)}'}"
    return InvalidRequestError(f"{_place(path)} {problem}")


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
_Ids = Annotated[list[Natural], Field(min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_INPUTS)]
"""Texts of which each is an input."""


def _read_inputs(given: Any) -> Sequence[str] | Sequence[Sequence[int]]:
    """Return one or many texts or lists of token ids as many."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise must(f"must be a text, texts, token ids or lists of token ids, was {shown(given)}")
    if not given:
        raise must("must have at least one text or token id, had none")
    kinds = set(map(type, given))
    if kinds <= {int, float}:
        return [_read_ids(given)]
    if len(given) > MOST_INPUTS:
        raise must(f"must be at most {MOST_INPUTS} inputs, were {len(given)}")
    if kinds == {list}:
        return [_read_ids(row, index) for index, row in enumerate(given)]
    if kinds != {str}:
        wrong = next(one for one in given if type(one) not in {str, list} or type(one) is not type(given[0]))
        raise must(
            f"must be a text, texts, token ids or lists of token ids, all of one kind, had {shown(wrong)}"
        )
    return given


def _read_ids(row: Sequence[Any], *at: int) -> Sequence[int]:
    """Return a list of token ids. It may be long: all that is right is looked at together."""
    if not row:
        raise must("must be token ids, at least one", *at)
    ids = row if set(map(type, row)) == {int} else [_whole(one) for one in row]
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > MOST:
        wrong = next(i for i, one in enumerate(ids) if type(one) is not int or not 0 <= one <= MOST)
        raise must(f"must be a token id, from 0 to {MOST}, was {shown(row[wrong])}", *at, wrong)
    return ids


Inputs = Annotated[
    Any,
    PlainValidator(
        _read_inputs,
        json_schema_input_type=str
        | Texts
        | _Ids
        | Annotated[list[_Ids], Field(min_length=1, max_length=MOST_INPUTS)],
    ),
]
"""What is embedded: B texts, or B lists of token ids."""


def _read_evidence(given: Any) -> bool | int | None:
    count = _whole(given)
    if count is None or isinstance(count, bool) or (isinstance(count, int) and 1 <= count <= MOST_PAIRS):
        return count
    raise must(f"must be true, false or a whole number from 1 to {MOST_PAIRS}, was {shown(given)}")


Evidence = Annotated[
    Any,
    PlainValidator(
        _read_evidence, json_schema_input_type=bool | Annotated[int, Field(ge=1, le=MOST_PAIRS)] | None
    ),
]
"""Whether to return evidence, or how many pairs of tokens of it."""


class Described(BaseModel):
    """What every object in a reply has in common."""

    model_config = ConfigDict(use_attribute_docstrings=True)
