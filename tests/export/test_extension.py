"""Graphs are added to a version: what is there is kept, and must be of the same encoder."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import bert_tokenizer
from tests.encoders import SMALL, seeded
from tests.exports import manifest_of

from polyhead_export import ExportError, ParityError, TokenizerFile, export_family
from polyhead_export.precision import Precision
from polyhead_model import Encoder, EncoderConfig


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Path]:
    """An encoder, and the repository that it was exported to."""
    encoder, models = seeded(), tmp_path_factory.mktemp("models")
    export_family(encoder, "small", models)
    return encoder, models


@pytest.fixture
def encoder(exported: tuple[Encoder, Path], tmp_path: Path) -> Encoder:
    """An encoder, which `tmp_path` has as the family `small`."""
    shutil.copytree(exported[1], tmp_path, dirs_exist_ok=True)
    return exported[0]


@pytest.fixture
def folder(encoder: Encoder, tmp_path: Path) -> Path:
    """Its version."""
    return tmp_path / "small" / "1"


def test_what_is_missing_is_added(encoder: Encoder, folder: Path, tmp_path: Path) -> None:
    """Nothing else is traced, and what is there stays as it is, byte for byte."""
    there = {file: (folder / file).read_bytes() for file in ("model.onnx", "attention.onnx")}
    steps: list[str] = []

    added = export_family(encoder, "small", tmp_path, graphs=["rows"], if_exists="add", on_step=steps.append)

    assert [step for step in steps if "tracing" in step] == ["small: tracing the rows graph"]
    assert set(added.parity.outputs) == {"fast", "attention", "rows"}
    manifest = manifest_of(folder)
    assert set(manifest["graphs"]) == {"fast", "attention", "rows"}
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert {file: (folder / file).read_bytes() for file in there} == there


def test_a_calibration_is_added(tmp_path: Path) -> None:
    tokenizer = TokenizerFile(path=tmp_path / "tokenizer.json", max_tokens=9)
    bert_tokenizer().save(str(tokenizer.path))
    encoder = Encoder(EncoderConfig(d_model=8, heads=2, layers=1, vocabulary=200, pooling="mean"))
    options: Any = {"tokenizer": tokenizer, "if_exists": "add"}
    folder = export_family(encoder, "texts", tmp_path, **options).folder

    export_family(encoder, "texts", tmp_path, **options, graphs=["rows"], sentences=["a b"])

    assert set(manifest_of(folder)["graphs"]) == {"fast", "attention", "rows"}
    assert manifest_of(folder)["calibration"]["texts"] == 1


def test_nothing_is_added_where_a_graph_would_be_lost(
    encoder: Encoder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_for_attention(*arguments: Any) -> dict[str, Any]:
        if arguments[1].name == "attention":
            raise ParityError("attention.onnx: planted")
        return {}

    before = manifest_of(folder)
    monkeypatch.setattr("polyhead_export.version.measure_neighbours", fails_for_attention)

    with pytest.raises(
        ParityError, match=r"small/1 stays as it was, as it would lose attention\. All graphs are"
    ):
        export_family(encoder, "small", tmp_path, graphs=["rows"], if_exists="add")

    assert manifest_of(folder) == before
    assert (folder / "attention.onnx").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_graphs_in_other_precisions_are_made_again(precision: Precision, tmp_path: Path) -> None:
    """They are judged by the graph in fp32 that they were made of."""
    encoder = Encoder(EncoderConfig(d_model=64, heads=2, layers=1))
    export_family(encoder, "small", tmp_path, precision=precision)

    added = export_family(encoder, "small", tmp_path, precision=precision, graphs=["rows"], if_exists="add")

    assert set(added.parity.outputs) == {"fast", "attention", "rows"}


def test_a_version_that_is_not_there_is_exported_where_graphs_are_to_be_added(tmp_path: Path) -> None:
    exported = export_family(seeded(), "small", tmp_path, if_exists="add")

    assert set(manifest_of(exported.folder)["graphs"]) == {"fast", "attention"}


def test_graphs_are_added_to_those_of_the_same_encoder_only(
    encoder: Encoder, folder: Path, tmp_path: Path
) -> None:
    before = manifest_of(folder)

    def refused(encoder: Encoder, **options: Any) -> str:
        with pytest.raises(ExportError) as caught:
            export_family(encoder, "small", tmp_path, if_exists="add", **options)
        return str(caught.value)

    assert "must have the attention graph that would be exported now" in (
        message := refused(encoder, attention_layers=[0])
    )
    assert "its outputs differ: give the same options" in message
    assert "must be of the same encoder" in (message := refused(Encoder(SMALL), precision="int8"))
    assert "its weights, precision differ: name another version" in message
    assert manifest_of(folder) == before

    (folder / "manifest.json").unlink()
    assert "has no manifest.json, so nothing can be added to it: replace it" in refused(encoder)
