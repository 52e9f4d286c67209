"""Sweeps from files, and those that have names."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from polyhead_load.errors import SweepError
from polyhead_load.sweep.spec import DIMENSIONS, Attention, Gates, Sweep, near

_PRESETS = files("polyhead_load.sweep") / "presets"


def presets() -> Mapping[str, str]:
    """Return the named sweeps: name → the text of its file."""
    return {
        entry.name.removesuffix(".toml"): entry.read_text()
        for entry in sorted(_PRESETS.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def read_sweep(source: str, **overrides: Any) -> tuple[str, Sweep]:
    """Return the sweep that a preset or a file says.

    Args:
        source: A preset's name, or the path of a TOML file.
        overrides: Fields to take instead of the file's, where they are not None.

    Returns:
        A short name for it, and the sweep.

    Raises:
        SweepError: There is neither, or the file says something that a sweep cannot be.
    """
    known = presets()
    if source in known:
        name, text, where = source, known[source], f"preset {source}"
    else:
        path = Path(source)
        if path.suffix != ".toml":
            raise SweepError(
                f"the sweep must be one of {', '.join(known)}, or a .toml file, was {source!r}"
                f"{near(source, known)}"
            )
        name, where = path.stem, source
        try:
            text = path.read_text()
        except UnicodeDecodeError as error:
            raise SweepError(f"{where} must be a TOML file: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{where} must be a TOML file: {error}") from error
    values.setdefault("title", name)
    values |= {field: value for field, value in overrides.items() if value is not None}
    try:
        return name, Sweep.model_validate(values)
    except ValidationError as error:
        raise SweepError(f"{where}: {_in_words(error)}") from error


_TABLES: Mapping[str, type[BaseModel]] = {"gates": Gates, "attention": Attention}


def _in_words(error: ValidationError) -> str:
    """Describe the first fault; an unknown field before others, which it may explain."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = [str(part) for part in fault["loc"] if not _is_type(part)]
    if fault["type"] == "extra_forbidden":
        table = _TABLES.get(path[0], Sweep) if len(path) > 1 else Sweep
        known = tuple(table.model_fields)
        return f"there is no field {'.'.join(path)!r}{near(path[-1], known)} (known: {', '.join(known)})"
    where = ".".join(path)
    if path and path[0] == "baseline" and fault["type"] == "literal_error":
        return f"there is no baseline.{path[1]}{near(path[1], DIMENSIONS)} (known: {', '.join(DIMENSIONS)})"
    if fault["type"] == "missing":
        return f"{where} must be given"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] != "value_error":
        message = f"{message[:1].lower()}{message[1:]}, was {fault['input']!r}"
    return f"{where}: {message}" if where else message


def _is_type(part: object) -> bool:
    """Return whether a part of a path is pydantic's own word: a member of a union, or `[key]`."""
    return part in {"int", "Lengths", "[key]", "bool", "float", "str"} or str(part).startswith(
        ("constrained-", "function-", "tuple[", "literal[")
    )
