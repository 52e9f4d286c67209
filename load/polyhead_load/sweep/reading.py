"""Read a sweep from a preset, a file, or a model repository."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polyhead_load.errors import LoadError, SweepError
from polyhead_load.load_plan import Lengths
from polyhead_load.outputs import Outputs
from polyhead_load.sweep.spec import FAMILY, Gates, Sweep
from polyhead_load.sweep.target import ServiceTarget
from polyhead_load.sweep.validation import in_words
from polyhead_model.description import near

_PRESETS = files("polyhead_load.sweep") / "presets"
_OF_REPOSITORY = """
title = "All families of a model repository"
tokens = [32]
loads = ["single", "50%"]
[families]
"""
_TABLES = {"gates": Gates, "target": ServiceTarget, "tokens": Lengths, "outputs": Outputs}


def preset_files() -> Mapping[str, str]:
    """Return the presets: name → the text of its file."""
    return {
        entry.name.removesuffix(".toml"): entry.read_text()
        for entry in sorted(_PRESETS.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def families_in(repository: Path) -> list[str]:
    """Return the families of a model repository; none where it is something else."""
    names = {file.parts[-3] for file in repository.glob("*/[1-9]*/manifest.json")}
    return sorted(name for name in names if FAMILY.fullmatch(name))


def repository_run(repository: Path) -> str:
    """Return the short name of a sweep over all families of a model repository."""
    return f"all-{repository.resolve().name}"


def read_sweep(
    source: str,
    *,
    families: Sequence[str] | None = None,
    foreign_cpu: float | None = None,
    **overrides: Any,
) -> tuple[str, Sweep]:
    """Read a sweep from a preset or a file.

    Args:
        source: A preset's name, the path of a TOML file, or a model repository, for all of its families.
        families: Those of its families to keep; None is all.
        foreign_cpu: That gate, where it is not None.
        overrides: Fields that replace the file's, where they are not None.

    Returns:
        A short name, and the sweep.

    Raises:
        SweepError: There is neither, or it does not describe a sweep.
    """
    known = preset_files()
    if source in known:
        name, text, where = source, known[source], f"preset {source}"
    elif found := families_in(path := Path(source)):
        name, where = repository_run(path), source
        text = _OF_REPOSITORY + "".join(f"{family} = {{}}\n" for family in found)
    else:
        if path.suffix != ".toml":
            raise SweepError(
                f"the sweep must be one of {', '.join(known)}, a .toml file, or a model repository, was "
                f"{source!r}{near(source, known)}"
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
    if families is not None:
        _keep(values, families)
    if foreign_cpu is not None:
        values["gates"] = {**values.get("gates", {}), "foreign_cpu": foreign_cpu}
    try:
        return name, Sweep.model_validate(values)
    except ValidationError as error:
        raise SweepError(f"{where}: {in_words(error, Sweep, _TABLES)}") from error
    except LoadError as error:
        raise SweepError(f"{where}: {error}") from error


def _keep(values: dict[str, Any], names: Sequence[str]) -> None:
    """Leave out the other families; the first that is kept takes the place of a baseline that is not."""
    known = values.get("families", {})
    for name in names:
        if name not in known:
            raise SweepError(f"--families must be of {', '.join(known)}, was {name!r}{near(name, known)}")
    values["families"] = {name: known[name] for name in names}
    if (baseline := values.get("baseline", {})).get("family") not in {None, *names}:
        values["baseline"] = {**baseline, "family": names[0]}
