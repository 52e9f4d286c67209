"""An encoder's configuration from a JSON file. Needs no torch."""

import dataclasses
import difflib
import json
from pathlib import Path

from polyhead_model.config import EncoderConfig


class DescriptionError(Exception):
    """A file does not describe an encoder; the message says why."""


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
    known = [field.name for field in dataclasses.fields(EncoderConfig)]
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DescriptionError(f"{file}: there is no field {field!r} of an encoder{hint}")
    try:
        return EncoderConfig(**fields)
    except (TypeError, ValueError) as error:
        missing = [name for name in ("d_model", "heads", "layers") if name not in fields]
        problem = f"{', '.join(missing)} must be given" if missing else str(error)
        raise DescriptionError(f"{file}: {problem}") from error
