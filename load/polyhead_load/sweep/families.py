"""The families of a sweep in a model repository: what is missing is exported, what cannot be is skipped."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyhead_load.sweep import memory
from polyhead_load.sweep.processes import ProcessError, polyhead
from polyhead_load.sweep.spec import Sweep


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family in the repository."""

    name: str
    folder: Path
    """Of its newest version."""
    manifest: Mapping[str, Any]

    @property
    def serving_bytes(self) -> int:
        """Memory that it takes while it is served."""
        return memory.serving_bytes(self.manifest["encoder"])


@dataclass(frozen=True, kw_only=True)
class Provided:
    """What there is, and what there is not."""

    families: Mapping[str, Family]
    skipped: Mapping[str, str]
    """Name → why."""


class SkipError(Exception):
    """Why a family cannot be had."""


def provide(
    sweep: Sweep,
    models: Path,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    export: Callable[..., None] = polyhead,
    available: Callable[[], int] = memory.available,
) -> Provided:
    """Sees that the repository holds the families of a sweep.

    Args:
        sweep: Names them, and says what they are to be.
        models: The model repository; made where it is missing.
        on_step: Called with a few words before each export.
        export: Runs `polyhead` with arguments; raises `ProcessError`.
        available: Bytes of memory.
    """
    families: dict[str, Family] = {}
    skipped: dict[str, str] = {}
    for name in sweep.families:
        wanted = sweep.encoder_of(name)
        try:
            found = find_family(models, name)
            if found is None:
                _check_description(wanted, models)
                _check_memory("its export", memory.exporting_bytes(wanted), available())
                on_step(f"exporting {name}")
                found = _export(name, wanted, models, sweep.seed, export)
            _check(found, wanted)
            _check_memory("serving it", found.serving_bytes, available())
        except SkipError as skip:
            skipped[name] = str(skip)
        else:
            families[name] = found
    return Provided(families=families, skipped=skipped)


def find_family(models: Path, name: str) -> Family | None:
    """The newest complete version of a family in a repository."""
    versions = sorted(
        (int(entry.name), entry)
        for entry in (models / name).glob("[1-9]*")
        if entry.name.isdecimal() and (entry / "manifest.json").is_file()
    )
    if not versions:
        return None
    _, folder = versions[-1]
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except ValueError:
        return None
    return Family(name=name, folder=folder, manifest=manifest)


def _check_description(wanted: Mapping[str, Any], models: Path) -> None:
    if not wanted:
        raise SkipError(
            f"it is not in {models}, and the sweep does not say what it is: give it encoder fields"
        )
    missing = [field for field in ("d_model", "heads", "layers") if field not in wanted]
    if missing:
        raise SkipError(f"the sweep does not say its {', '.join(missing)}")


def _export(
    name: str, wanted: Mapping[str, Any], models: Path, seed: int, export: Callable[..., None]
) -> Family:
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


def _check(found: Family, wanted: Mapping[str, Any]) -> None:
    """A family of the same name may be another encoder."""
    encoder = found.manifest.get("encoder", {})
    for field, value in wanted.items():
        if encoder.get(field) != value:
            raise SkipError(
                f"{found.folder} is another encoder: {field} must be {value}, was {encoder.get(field)}; "
                "remove it, or give another --models"
            )


def _check_memory(what: str, needed: int, there: int) -> None:
    if needed > there:
        raise SkipError(
            f"{what} takes about {needed / 2**30:.1f} GiB of memory, {there / 2**30:.1f} GiB are free"
        )
