"""Read an encoder's configuration from plain values, such as those of a JSON file. Needs no torch."""

import dataclasses
import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polyhead_model.config import EncoderConfig

REQUIRED = tuple(
    field.name for field in dataclasses.fields(EncoderConfig) if field.default is dataclasses.MISSING
)
"""The fields without a default."""


class DescriptionError(ValueError):
    """The values do not describe an encoder; the message says why."""


def near(wanted: str, known: Iterable[str]) -> str:
    """Return such as `; did you mean 'heads'?`, or nothing where nothing is similar."""
    matches = difflib.get_close_matches(wanted, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_field_names(names: Iterable[str]) -> None:
    """Reject names that are not fields of `EncoderConfig`.

    Raises:
        DescriptionError: A name is not a field; the message suggests the closest one.
    """
    known = [field.name for field in dataclasses.fields(EncoderConfig)]
    for name in names:
        if name not in known:
            raise DescriptionError(f"there is no field {name!r} of an encoder{near(name, known)}")


def encoder_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Build a configuration from the fields of `EncoderConfig`.

    Raises:
        DescriptionError: A field is unknown, missing or not valid; the message names it.
    """
    check_field_names(fields)
    if missing := [name for name in REQUIRED if name not in fields]:
        raise DescriptionError(f"{', '.join(missing)} must be given")
    try:
        return EncoderConfig(**fields)
    except (TypeError, ValueError) as error:
        raise DescriptionError(str(error)) from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of JSON, of which the standard reader would drop all but the last value of a name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{name!r} must be given once in an object")
    return fields


def read_description(file: Path) -> EncoderConfig:
    """Read an encoder's configuration from a JSON object with the fields of `EncoderConfig`.

    Args:
        file: A file such as `{"d_model": 768, "heads": 12, "layers": 1}`.

    Raises:
        DescriptionError: The file does not describe an encoder.
        OSError: The file cannot be read.
    """
    try:
        fields = json.loads(file.read_bytes(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"--encoder must be a JSON file, {file} is none: {error}") from error
    if not isinstance(fields, dict):
        raise DescriptionError(f"--encoder must hold a JSON object, {file} does not")
    try:
        return encoder_config(fields)
    except DescriptionError as error:
        raise DescriptionError(f"{file}: {error}") from error
