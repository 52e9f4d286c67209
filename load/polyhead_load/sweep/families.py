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

DEFAULTS: Mapping[str, Any] = {
    "head_width": None,
    "feed_forward": None,
    "norm": "post",
    "activation": "gelu",
    "bias": True,
    "fused": False,
    "causal": False,
    "mask_input": False,
    "dropout": 0.0,
    "layer_norm_epsilon": 1e-12,
    "vocabulary": None,
    "positions": None,
    "padding_id": None,
    "types": 0,
    "embedding_norm": False,
    "final_norm": False,
    "pooling": None,
    "normalise": False,
}
"""What an encoder is where nobody says otherwise."""

_SIZES = {
    "d_model": 1,
    "heads": 1,
    "layers": 1,
    "head_width": 1,
    "feed_forward": 1,
    "vocabulary": 1,
    "positions": 1,
    "padding_id": 0,
    "types": 0,
}
"""Fields that are whole numbers, and the least that each may be."""

_PRECISION = "fp32"


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
            _check_sizes(wanted)
            found = find_family(models, name)
            if found is None:
                _check_description(wanted, models)
                _check_memory("its export", memory.exporting_bytes(wanted), available())
                on_step(f"exporting {name}")
                found = _export(name, wanted, models, sweep.seed, export)
            _check(found, wanted)
            if wanted:
                _check_tools(found, families)
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


def _check_sizes(wanted: Mapping[str, Any]) -> None:
    for field, least in _SIZES.items():
        value = wanted.get(field, least)
        if type(value) is not int or value < least:
            raise SkipError(f"{field} must be a whole number from {least} on, was {value!r}")


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
    """A family of the same name may be another encoder: in what is wanted, or in what is not spoken of."""
    if not wanted:
        return
    encoder = found.manifest.get("encoder", {})
    whole = {**{size: encoder.get(size) for size in ("d_model", "heads", "layers")}, **wanted}
    for field in {**wanted, **DEFAULTS}:  # what was asked for is told first
        must, was = (_value(field, each) for each in (whole, encoder))
        if must != was:
            raise SkipError(
                f"{found.folder} is another encoder: {field} must be {must}, was {was}; "
                "remove it, or give another --models"
            )
    precision = found.manifest.get("precision", _PRECISION)
    if precision != _PRECISION:
        raise SkipError(
            f"{found.folder} must be of precision {_PRECISION}, as a sweep exports it, was {precision}; "
            "remove it, or give another --models"
        )


def _value(field: str, encoder: Mapping[str, Any]) -> Any:
    value = encoder.get(field, DEFAULTS.get(field))
    if field == "head_width" and value is None and encoder.get("d_model") and encoder.get("heads"):
        return int(encoder["d_model"]) // int(encoder["heads"])  # what the width leaves for each head
    return value


def _check_tools(found: Family, families: Mapping[str, Family]) -> None:
    """Another exporter writes other graphs; what is compared has to come from the same."""
    for other in families.values():
        one, another = (family.manifest.get("tools", {}) for family in (other, found))
        for tool in sorted(one.keys() & another.keys()):
            if one[tool] != another[tool]:
                raise SkipError(
                    f"{found.folder} was exported with {tool} {another[tool]}, "
                    f"{other.name} with {one[tool]}: remove them to have both exported anew, "
                    "or give another --models"
                )


def _check_memory(what: str, needed: int, there: int) -> None:
    if needed > there:
        raise SkipError(
            f"{what} takes about {needed / 2**30:.1f} GiB of memory, {there / 2**30:.1f} GiB are free"
        )
