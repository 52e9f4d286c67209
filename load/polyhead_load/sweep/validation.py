"""Check the tables of a sweep's file, and say what is wrong with one."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from polyhead_model.description import near


class Table(BaseModel):
    """A table that has its fields alone, and no number that is infinite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def in_words(error: ValidationError, table: Any, inner: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Describe the first fault of a table; an unknown field goes before others, which it may explain.

    Args:
        error: What pydantic says.
        table: The model, or dataclass.
        inner: Field → the one of the tables that it holds.
    """
    unknown = {"extra_forbidden", "unexpected_keyword_argument"}
    fault = min(error.errors(), key=lambda fault: fault["type"] not in unknown)
    path = [str(part) for part in fault["loc"] if not _is_type(part)]
    where = ".".join(path)
    if fault["type"] in unknown:
        at = inner[path[0]] if len(path) > 1 else table
        known = [one.name for one in fields(at)] if is_dataclass(at) else list(at.model_fields)
        return f"there is no field {where!r}{near(path[-1], known)} (known: {', '.join(known)})"
    if fault["type"] == "missing":
        return f"{where} must be given"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] != "value_error":
        message = f"{message[:1].lower()}{message[1:]}, was {fault['input']!r}"
    return f"{where}: {message}" if where else message


def _is_type(part: object) -> bool:
    """Return whether a part of a path is pydantic's own: a member of a union, or `[key]`."""
    return part in {"int", "Lengths", "[key]", "bool", "float", "str"} or str(part).startswith(
        ("constrained-", "function-", "tuple[", "literal[")
    )
