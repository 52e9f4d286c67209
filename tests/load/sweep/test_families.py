"""What is missing is exported; what cannot be had is skipped, with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.load.sweep.synthetic import small_sweep

from polyhead_load.sweep import memory
from polyhead_load.sweep.families import provide
from polyhead_load.sweep.processes import ProcessError
from polyhead_load.sweep.reading import read_sweep
from polyhead_model import EncoderConfig, parameters

PLENTY = 2**40
DESCRIBED = {"d_model": 16, "heads": 2, "layers": 1}


class Exporter:
    """Writes only what a manifest says."""

    def __init__(self, **changes: Any) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._changes = changes

    def __call__(self, *arguments: str | Path) -> None:
        self.calls.append(tuple(map(str, arguments)))
        flags = dict(zip(arguments[1::2], arguments[2::2], strict=True))
        encoder = json.loads(Path(flags["--encoder"]).read_text()) | self._changes
        folder = Path(flags["--models"]) / str(flags["--name"]) / "1"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"encoder": encoder}))


def failing(*_: str | Path) -> None:
    raise ProcessError("ended with 1: polyhead export needs the export extra")


def test_what_is_missing_is_exported_once(tmp_path: Path) -> None:
    sweep = small_sweep(families={"a": {"heads": 1}, "b": {"heads": 4}}, encoder=DESCRIBED, seed=5)
    export, steps = Exporter(), list[str]()

    provided = provide(sweep, tmp_path, on_step=steps.append, export=export, available=lambda: PLENTY)
    again = provide(sweep, tmp_path, export=export, available=lambda: PLENTY)

    assert list(provided.families) == list(again.families) == ["a", "b"]
    assert not provided.skipped
    assert provided.families["b"].manifest["encoder"] == {**DESCRIBED, "heads": 4}
    assert steps == ["exporting a", "exporting b"]
    assert len(export.calls) == 2
    assert export.calls[0][0] == "export"
    assert export.calls[0][export.calls[0].index("--seed") + 1] == "5"


def test_what_is_there_needs_no_description(repository: Path) -> None:
    provided = provide(small_sweep(), repository, export=failing, available=lambda: PLENTY)

    assert list(provided.families) == ["tiny", "tiny-tokens"]


@pytest.mark.parametrize(
    ("encoder", "export", "available", "message"),
    [
        ({}, failing, PLENTY, "it is not in .*, and the sweep does not say what it is"),
        ({"d_model": 8}, failing, PLENTY, "the sweep does not say its heads, layers"),
        (DESCRIBED, failing, PLENTY, "it cannot be exported: ended with 1: polyhead export needs the export"),
        (DESCRIBED, lambda *_: None, PLENTY, "its export left nothing in"),
        (DESCRIBED, failing, 1000, r"its export takes about 0\.4 GiB of memory, 0\.0 GiB are free"),
        (DESCRIBED, Exporter(heads=3), PLENTY, "is another encoder: heads must be 2, was 3; remove it"),
    ],
)
def test_what_cannot_be_had_is_skipped(
    encoder: Any, export: Any, available: int, message: str, tmp_path: Path
) -> None:
    sweep = small_sweep(families={"a": encoder})

    provided = provide(sweep, tmp_path, export=export, available=lambda: available)

    assert not provided.families
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(provided.skipped["a"])


def test_another_encoder_of_the_same_name_is_not_measured(repository: Path) -> None:
    sweep = small_sweep(families={"tiny": {"heads": 2}})

    provided = provide(sweep, repository, export=failing, available=lambda: PLENTY)

    assert "heads must be 2, was 4" in provided.skipped["tiny"]


@pytest.mark.parametrize("preset", ["heads", "models", "widths"])
def test_weights_are_counted_as_the_model_counts_them(preset: str) -> None:
    _, sweep = read_sweep(preset)
    for family in sweep.families:
        encoder = sweep.encoder_of(family)
        exact = 4 * parameters(EncoderConfig(**encoder))  # type: ignore[arg-type]

        assert memory.weight_bytes(encoder) == pytest.approx(exact, rel=0.02)
