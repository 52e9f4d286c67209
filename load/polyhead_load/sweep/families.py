"""Find the families of a sweep in a model repository: export what is missing, skip what is not available."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from polyhead_load.sweep.processes import ProcessError, polyhead
from polyhead_load.sweep.spec import Sweep
from polyhead_model.config import EncoderConfig
from polyhead_model.describe import parameters
from polyhead_model.description import REQUIRED, DescriptionError, encoder_config
from polyhead_proto.system.cgroups import THIS_PROCESS, ControlGroups

_SERVED = 2.2
"""Memory of a served family, as a multiple of its weights: both of its graphs pack them, and run."""
_PRECISION = "fp32"

Export = Callable[..., None]
"""Runs `polyhead` with arguments; raises `ProcessError`."""


@dataclass(frozen=True, kw_only=True)
class SweepFamily:
    """A family in the model repository."""

    name: str
    folder: Path
    """The folder of its newest version."""
    manifest: Mapping[str, Any]

    @cached_property
    def encoder(self) -> EncoderConfig:
        """Return its configuration.

        Raises:
            SkipError: The manifest has none that this polyhead knows.
        """
        try:
            return encoder_config(self.manifest.get("encoder", {}))
        except DescriptionError as error:
            raise SkipError(f"{self.folder} must be exported again: {error}") from error

    @property
    def serving_bytes(self) -> int:
        """Return the memory that it takes while it is served."""
        return int(_SERVED * weight_bytes(self.encoder))

    @property
    def hashes(self) -> dict[str, str]:
        """Return file → SHA-256."""
        return {name: record["sha256"] for name, record in self.manifest.get("files", {}).items()}

    @property
    def facts(self) -> dict[str, Any]:
        """Return what a report says about it."""
        return {
            "encoder": {name: value for name, value in self.manifest["encoder"].items() if value is not None},
            "precision": self.manifest.get("precision"),
            "parameters": self.manifest.get("numbers", {}).get("parameters"),
            "tools": self.manifest.get("tools", {}),
        }


@dataclass(frozen=True, kw_only=True)
class Provided:
    """Families that can be measured, and those that cannot."""

    families: Mapping[str, SweepFamily]
    skipped: Mapping[str, str]
    """Name → why."""


class SkipError(Exception):
    """A family cannot be measured; the message says why."""


def available_bytes(groups: ControlGroups = THIS_PROCESS) -> int:
    """Return how much memory is free without swapping, and within a container's limit."""
    return min(int(psutil.virtual_memory().available), groups.memory_left())


def provide(
    sweep: Sweep,
    models: Path,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    export: Export = polyhead,
    available: Callable[[], int] = available_bytes,
) -> Provided:
    """Find the families of a sweep in the repository, and export those that are missing.

    `on_step` is called with a few words before each export; `available` returns the bytes of free memory.
    """
    families: dict[str, SweepFamily] = {}
    skipped: dict[str, str] = {}
    for name in sweep.families:
        wanted = sweep.encoder_of(name)
        try:
            found = find_family(models, name)
            if found is None:
                _described(wanted, models)
                on_step(f"exporting {name}")
                found = _export(name, wanted, models, sweep.seed, export)
            if wanted:
                _check(found, wanted)
            _check_memory([*families.values(), found], available())
        except SkipError as skip:
            skipped[name] = str(skip)
        else:
            families[name] = found
    return Provided(families=families, skipped=skipped)


def find_family(models: Path, name: str) -> SweepFamily | None:
    """Return the newest complete version of a family in a repository."""
    versions = [
        entry
        for entry in (models / name).glob("[1-9]*")
        if entry.name.isdecimal() and (entry / "manifest.json").is_file()
    ]
    if not versions:
        return None
    folder = max(versions, key=lambda entry: int(entry.name))
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except ValueError:
        return None
    return SweepFamily(name=name, folder=folder, manifest=manifest)


def weight_bytes(encoder: EncoderConfig) -> int:
    """Return the size of an encoder's weights in fp32."""
    return 4 * parameters(encoder)


def _described(wanted: Mapping[str, Any], models: Path) -> EncoderConfig:
    if not wanted:
        raise SkipError(
            f"it is not in {models}, and the sweep does not say what it is: give it encoder fields"
        )
    try:
        return encoder_config(wanted)
    except DescriptionError as error:
        raise SkipError(f"the sweep does not describe an encoder: {error}") from error


def _export(name: str, wanted: Mapping[str, Any], models: Path, seed: int, export: Export) -> SweepFamily:
    with tempfile.TemporaryDirectory(prefix="polyhead-sweep-") as folder:
        description = Path(folder) / f"{name}.json"
        description.write_text(json.dumps(wanted))
        flags = ("--models", models, "--seed", str(seed), "--if-exists", "replace")
        try:
            export("export", "--encoder", description, "--name", name, *flags)
        except ProcessError as error:
            raise SkipError(f"it cannot be exported: {error}") from error
    found = find_family(models, name)
    if found is None:
        raise SkipError(f"its export left nothing in {models}")
    return found


def _check(found: SweepFamily, wanted: Mapping[str, Any]) -> None:
    """Reject a family of the same name with another encoder, whether a field is given or a default."""
    was = found.encoder
    must = _described({**{name: getattr(was, name) for name in REQUIRED}, **wanted}, found.folder)
    # A head width may be given, or follow from D and H.
    if replace(must, head_width=must.head_size) != replace(was, head_width=was.head_size):
        raise SkipError(
            f"{found.folder} is another encoder than the sweep describes: remove it, or give another --models"
        )
    precision = found.manifest.get("precision", _PRECISION)
    if precision != _PRECISION:
        raise SkipError(
            f"{found.folder} must be of precision {_PRECISION}, as a sweep exports it, was {precision}; "
            "remove it, or give another --models"
        )


def _check_memory(served: Sequence[SweepFamily], there: int) -> None:
    """Reject the last one where all of them together do not fit."""
    needed = sum(family.serving_bytes for family in served)
    if needed > there:
        beside = f" and the {len(served) - 1} before it" if len(served) > 1 else ""
        raise SkipError(
            f"serving it{beside} takes about {needed / 2**30:.1f} GiB of memory, "
            f"{there / 2**30:.1f} GiB are free"
        )
