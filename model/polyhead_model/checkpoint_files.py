"""Read the small files of a checkpoint folder, none of which is trusted."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

Chosen = TypeVar("Chosen")


class CheckpointError(Exception):
    """A checkpoint cannot be loaded; the message says why."""


def read_json(path: Path) -> object:
    """Read a JSON file.

    Raises:
        CheckpointError: The file is missing or not JSON.
    """
    if path.exists() and not path.is_file():  # reading a pipe would block forever
        raise CheckpointError(f"{path}: must be a regular file")
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # invalid JSON, invalid UTF-8, or nested too deeply
        raise CheckpointError(f"{path}: must be JSON ({error})") from error


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON file that holds an object.

    Raises:
        CheckpointError: The file is missing, not JSON, or holds something else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must be a JSON object, was {type(value).__name__}")
    return value


def integer(path: Path, config: Mapping[str, object], name: str) -> int:
    """Return an integer from the object that was read from `path`.

    Raises:
        CheckpointError: The value is missing or not an integer.
    """
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        found = "is missing" if name not in config else f"was {value!r}"
        raise CheckpointError(f"{path}: {name} must be an integer, {found}")
    return value


def flag(path: Path, config: Mapping[str, object], name: str, *, default: bool) -> bool:
    """Return a flag from the object that was read from `path`.

    Raises:
        CheckpointError: The value is not a boolean.
    """
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} must be true or false, was {value!r}")
    return value


def choice(path: Path, config: Mapping[str, object], name: str, choices: Mapping[str, Chosen]) -> Chosen:
    """Return what a name stands for in the object that was read from `path`.

    Raises:
        CheckpointError: The value is none of the names.
    """
    value = config.get(name)
    if not isinstance(value, str) or value not in choices:
        raise CheckpointError(f"{path}: {name} must be one of {', '.join(choices)}, was {value!r}")
    return choices[value]


def inside(path: Path, name: object) -> Path:
    """Resolve a file name that occurs in the file `path`, relative to its folder.

    Raises:
        CheckpointError: The name leads out of the folder.
    """
    if not isinstance(name, str) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise CheckpointError(f"{path}: must name files inside its own folder, named {name!r}")
    return path.parent / name
