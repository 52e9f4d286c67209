"""What is missing is exported; what is not available is skipped, with a reason."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.load.sweep.synthetic import small_sweep

from polyhead_load.sweep.families import available_bytes, provide
from polyhead_load.sweep.processes import ProcessError
from polyhead_proto.system.cgroups import ControlGroups

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


def test_heads_may_share_keys_or_differ_in_width(tmp_path: Path) -> None:
    families = {
        "groups": {"heads": 4, "kv_heads": 2},
        "widths": {"head_width": 8, "head_widths": [[8, 4]]},
        "wrong": {"heads": 4, "kv_heads": 3},
    }
    sweep = small_sweep(families=families, encoder=DESCRIBED)

    for export in (Exporter(), failing):  # what is found again is what the sweep describes
        provided = provide(sweep, tmp_path, export=export, available=lambda: PLENTY)
        assert list(provided.families) == ["groups", "widths"]
        assert provided.families["widths"].encoder.widths_of(0) == [8, 4]
        assert "kv_heads must divide heads (4)" in provided.skipped["wrong"]


def test_what_is_there_needs_no_description(repository: Path) -> None:
    provided = provide(small_sweep(), repository, export=failing, available=lambda: PLENTY)

    assert list(provided.families) == ["tiny", "tiny-tokens"]


@pytest.mark.parametrize(
    ("encoder", "export", "available", "message"),
    [
        ({}, failing, PLENTY, "it is not in .*, and the sweep does not say what it is"),
        (
            {"d_model": 8},
            failing,
            PLENTY,
            "the sweep does not describe an encoder: heads, layers must be given",
        ),
        (DESCRIBED, failing, PLENTY, "it cannot be exported: ended with 1: polyhead export needs the export"),
        (DESCRIBED, lambda *_: None, PLENTY, "its export left nothing in"),
        (DESCRIBED, Exporter(), 1000, r"serving it takes about 0\.0 GiB of memory, 0\.0 GiB are free"),
        (DESCRIBED, Exporter(heads=4), PLENTY, "is another encoder than the sweep describes: remove it"),
        (DESCRIBED, Exporter(feed_forward=64), PLENTY, "is another encoder"),
        (DESCRIBED, Exporter(head_width=4), PLENTY, "is another encoder"),
        ({**DESCRIBED, "heads": 0}, failing, PLENTY, "heads must be at least 1, was 0"),
        ({**DESCRIBED, "layers": True}, failing, PLENTY, "layers must be an integer, was True"),
    ],
)
def test_what_is_not_available_is_skipped(
    encoder: Any, export: Any, available: int, message: str, tmp_path: Path
) -> None:
    sweep = small_sweep(families={"a": encoder})

    provided = provide(sweep, tmp_path, export=export, available=lambda: available)

    assert not provided.families
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(provided.skipped["a"])


def test_families_are_of_one_precision(tmp_path: Path) -> None:
    sweep = small_sweep(families={"a": {}, "b": {}}, encoder=DESCRIBED)
    provide(sweep, tmp_path, export=Exporter(), available=lambda: PLENTY)
    file = tmp_path / "b" / "1" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"precision": "fp16"}))

    provided = provide(sweep, tmp_path, export=failing, available=lambda: PLENTY)

    assert list(provided.families) == ["a"]
    assert "must be of precision fp32, as a sweep exports it, was fp16" in provided.skipped["b"]


def test_families_are_served_together_as_far_as_memory_reaches(tmp_path: Path) -> None:
    sweep = small_sweep(families=dict.fromkeys("abc", DESCRIBED))
    one = next(iter(provide(sweep, tmp_path, export=Exporter()).families.values())).serving_bytes

    provided = provide(sweep, tmp_path, export=failing, available=lambda: 2 * one)

    assert list(provided.families) == ["a", "b"]
    assert "serving it and the 2 before it takes about 0.0 GiB of memory" in provided.skipped["c"]


def test_a_manifest_of_another_polyhead_is_not_measured(tmp_path: Path) -> None:
    sweep = small_sweep(families={"a": DESCRIBED})
    export = Exporter(wavelets=3)

    provided = provide(sweep, tmp_path, export=export, available=lambda: PLENTY)

    assert "must be exported again: there is no field 'wavelets'" in provided.skipped["a"]


@pytest.mark.parametrize(("limit", "used", "left"), [("9000", "2000", 7000), ("1000", "2000", 0)])
def test_a_containers_limit_counts(limit: str, used: str, left: int, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)

    assert available_bytes(ControlGroups(membership=tmp_path / "membership", root=tmp_path)) == left


def test_a_sweep_needs_no_torch() -> None:
    code = "import sys, polyhead_load.sweep.sweeping; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
