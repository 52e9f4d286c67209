"""What is missing is exported; what cannot be had is skipped, with a reason."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.load.sweep.synthetic import small_sweep

from polyhead_load.sweep import memory
from polyhead_load.sweep.families import DEFAULTS, provide
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
        (DESCRIBED, Exporter(feed_forward=64), PLENTY, "encoder: feed_forward must be None, was 64"),
        (DESCRIBED, Exporter(causal=True), PLENTY, "encoder: causal must be False, was True"),
        (DESCRIBED, Exporter(head_width=4), PLENTY, "encoder: head_width must be 8, was 4"),
        ({**DESCRIBED, "heads": 0}, failing, PLENTY, "heads must be a whole number from 1 on, was 0"),
        ({**DESCRIBED, "d_model": "x"}, failing, PLENTY, "d_model must be a whole number from 1 on, was 'x'"),
        ({**DESCRIBED, "layers": True}, failing, PLENTY, "layers must be a whole number from 1 on, was True"),
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


def test_what_is_not_said_of_sizes_is_what_is_there(tmp_path: Path) -> None:
    provide(small_sweep(families={"a": DESCRIBED}), tmp_path, export=Exporter(), available=lambda: PLENTY)

    sweep = small_sweep(families={"a": {"heads": 2}})

    assert not provide(sweep, tmp_path, export=failing, available=lambda: PLENTY).skipped


def test_a_head_width_may_be_said_or_left_to_follow(tmp_path: Path) -> None:
    sweep = small_sweep(families={"a": DESCRIBED})

    provided = provide(sweep, tmp_path, export=Exporter(head_width=8), available=lambda: PLENTY)

    assert not provided.skipped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp16"}, "must be of precision fp32, as a sweep exports it, was fp16"),
        ({"tools": {"torch": "2"}}, "was exported with torch 2, a with 1: remove them"),
    ],
)
def test_families_are_of_one_precision_and_one_exporter(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sweep = small_sweep(families={"a": {}, "b": {}}, encoder=DESCRIBED)
    provide(sweep, tmp_path, export=Exporter(), available=lambda: PLENTY)
    for name, more in (("a", {"tools": {"torch": "1"}}), ("b", changes)):
        file = tmp_path / name / "1" / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | more))

    provided = provide(sweep, tmp_path, export=failing, available=lambda: PLENTY)

    assert list(provided.families) == ["a"]
    assert message in provided.skipped["b"]


def test_the_defaults_of_an_encoder_are_known() -> None:
    config = dataclasses.asdict(EncoderConfig(d_model=16, heads=2, layers=1))

    assert {name: config[name] for name in config if name not in DESCRIBED} == DEFAULTS


@pytest.mark.parametrize("preset", ["heads", "models", "widths"])
def test_weights_are_counted_as_the_model_counts_them(preset: str) -> None:
    _, sweep = read_sweep(preset)
    for family in sweep.families:
        encoder = sweep.encoder_of(family)
        exact = 4 * parameters(EncoderConfig(**encoder))  # type: ignore[arg-type]

        assert memory.weight_bytes(encoder) == pytest.approx(exact, rel=0.02)
