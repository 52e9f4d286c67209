"""JSON as clients send it: strict, and read so that other threads are not held up."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from polyhead_server.errors import InvalidRequestError, TooLargeError, listed, quoted, shorten

MAX_JSON_BYTES = 8 * 2**20
"""Numbers as text take some ten bytes each, and as Python's objects several times that. This does not limit
binary tensors."""

_MOST_MARKS = 2**18
"""Arrays, objects, their keys, and such marks in strings: eight for each token of the largest request by
default. While json makes them and the garbage collector visits them, no other thread runs: for millions, a
second."""

_MOST_KEYS = 4096

_NAMES: Mapping[type, str] = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def read_json(text: bytes | memoryview) -> Any:
    """Read a JSON document.

    Raises:
        InvalidRequestError: It is not JSON (RFC 8259) in UTF-8, is nested too deep, or has a key twice.
        TooLargeError: It is too long, or has too many arrays, objects and keys.
    """
    if len(text) > MAX_JSON_BYTES:
        raise TooLargeError(
            f"JSON must have at most {MAX_JSON_BYTES} bytes, had {len(text)}: send large tensors in binary, "
            "after the JSON (parameter binary_data_size and header Inference-Header-Content-Length)"
        )
    try:
        document = str(text, "utf-8")
        if (marks := sum(map(document.count, "[{:"))) > _MOST_MARKS:
            raise TooLargeError(f"JSON must have at most {_MOST_MARKS} of [, {{ and :, had {marks}")
        return _DECODER.decode(document)
    except RecursionError:
        raise InvalidRequestError("the JSON must not be nested so deep") from None
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body must be JSON, was not: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the JSON must be in UTF-8, was {text[error.start]:#04x} at byte {error.start}"
        ) from error
    except ValueError as error:  # a number of thousands of digits
        raise InvalidRequestError("the JSON must not have numbers of so many digits") from error


@dataclass(frozen=True)
class Field:
    """A field of an object."""

    meaning: str
    types: Collection[type]
    _: KW_ONLY
    required: bool = False
    items: "Fields | None" = None
    """The fields of an object, or of the objects in an array."""


@dataclass(frozen=True)
class Fields:
    """The fields that an object may have."""

    known: Mapping[str, Field]
    example: Mapping[str, object] | None = None
    """An object that has some of them."""

    def read(self, value: object, whose: str) -> dict[str, Any]:
        """Check that a value is such an object. Fields of null are left out.

        Args:
            value: An object of JSON.
            whose: What it is, for messages.

        Raises:
            InvalidRequestError: Something about it is wrong.
        """
        if not isinstance(value, dict):
            raise InvalidRequestError(f"{whose} must be an object, was {shown(value)}")
        fields = {name: given for name, given in value.items() if given is not None}
        for name, given in fields.items():
            if name not in self.known:
                raise InvalidRequestError(
                    f"field {quoted(name)} of {whose} is not known; there are {listed(self.known)}"
                )
            if type(given) not in self.known[name].types:
                must = " or ".join(_NAMES[kind] for kind in self.known[name].types)
                raise InvalidRequestError(f"{name} of {whose} must be {must}, was {shown(given)}")
        need(fields, whose, *self.required)
        return fields

    @property
    def required(self) -> list[str]:
        """The fields that must be there."""
        return [name for name, field in self.known.items() if field.required]


def need(fields: Mapping[str, Any], whose: str, *names: str) -> None:
    """Check that fields are there.

    Raises:
        InvalidRequestError: One is missing.
    """
    for name in names:
        if name not in fields:
            raise InvalidRequestError(f"{whose} must have the field {name}")


def shown(value: object) -> str:
    """Show a caller's value in a message."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | dict):
        return _NAMES[type(value)]
    return shorten(json.dumps(value))


def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


def _constant(text: str) -> Any:
    raise InvalidRequestError(f"the body must be JSON, which has no {text}")


def _pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MOST_KEYS:
        raise InvalidRequestError(
            f"the JSON must have at most {_MOST_KEYS} keys in an object, had {len(pairs)}"
        )
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidRequestError(f"the JSON must have each key of an object once, had {quoted(twice)} twice")
    return fields


# Numbers are made by functions in Python, at which other threads may run: json's own would hold up all of
# them until the end of the document.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int
)
