"""An encoder's configuration from plain values, such as those of a JSON file. Needs no torch."""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polyhead_model.config import EncoderConfig

REQUIRED = tuple(
    field.name for field in dataclasses.fields(EncoderConfig) if field.default is dataclasses.MISSING
)
"""The fields that an encoder cannot do without."""


class DescriptionError(ValueError):
    """Values do not describe an encoder; the message says why."""


def check_field_names(names: Iterable[str]) -> None:
    """Refuse names that are no fields of `EncoderConfig`.

    Raises:
        DescriptionError: One is not; the message gives the nearest that is.
    """
    known = [field.name for field in dataclasses.fields(EncoderConfig)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DescriptionError(f"there is no field {name!r} of an encoder{hint}")


def encoder_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the configuration that fields of `EncoderConfig` make.

    Raises:
        DescriptionError: They make none; the message names the field.
    """
    check_field_names(fields)
    if missing := [name for name in REQUIRED if name not in fields]:
        raise DescriptionError(f"{', '.join(missing)} must be given")
    try:
        return EncoderConfig(**fields)
    except (TypeError, ValueError) as error:
        raise DescriptionError(str(error)) from error


def read_description(file: Path) -> EncoderConfig:
    """Read an encoder's configuration: an object with the fields of `EncoderConfig`.

    Args:
        file: Such as `{"d_model": 768, "heads": 12, "layers": 1}`.

    Raises:
        DescriptionError: The file does not describe an encoder.
        OSError: It cannot be read.
    """
    try:
        fields = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"--encoder must be a JSON file, {file} is none: {error}") from error
    if not isinstance(fields, dict):
        raise DescriptionError(f"--encoder must hold a JSON object, {file} does not")
    try:
        return encoder_config(fields)
    except DescriptionError as error:
        raise DescriptionError(f"{file}: {error}") from error
