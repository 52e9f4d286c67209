"""Which graphs a family has, and which layers they show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.encoders import MODERN, SMALL, seeded
from tests.exports import REPLACED, manifest_of, session_of
from tests.exports import run as run_session
from tests.numerics import close

from polyhead_export import ExportError, export_family
from polyhead_export.graphs import build_graph
from polyhead_export.kinds import KINDS, kinds_of
from polyhead_export.kinds.rows import RowsGraph
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind
from polyhead_model import Encoder, EncoderConfig

CONFIG = EncoderConfig(d_model=16, heads=2, layers=3)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One encoder as two families: with all layers, and with layers 2 and 0 only."""
    repository = tmp_path_factory.mktemp("kinds")
    encoder = seeded(CONFIG, seed=41)
    options: dict[str, dict[str, Any]] = {"every": {}, "chosen": {"attention_layers": [2, 0]}}
    return {
        name: export_family(encoder, name, repository, graphs=["rows"], **more).folder
        for name, more in options.items()
    }


def run(folder: Path, kind: GraphKind) -> dict[str, Any]:
    """The outputs of a graph by name, for the same input each time."""
    inputs = sample_inputs(CONFIG, RowsGraph(), 4, 11, seed=42)
    return run_session(session_of(folder / kind.file), inputs)


def test_chosen_layers_are_those_of_all(folders: dict[str, Path]) -> None:
    every, chosen = (run(folders[name], KINDS["attention"]()) for name in ("every", "chosen"))

    assert list(chosen) == ["output", "attention.0", "attention.2", "value_norms"]
    for name in ("output", "attention.0", "attention.2"):
        np.testing.assert_allclose(chosen[name], every[name], atol=1e-5)
    np.testing.assert_allclose(chosen["value_norms"], every["value_norms"][:, [0, 2]], atol=1e-5)


def test_weights_of_padding_are_exactly_zero(folders: dict[str, Path]) -> None:
    lengths = sample_inputs(CONFIG, RowsGraph(), 4, 11, seed=42)["lengths"].numpy()
    valid = np.arange(11) < lengths[:, None]
    attention = run(folders["every"], KINDS["attention"]())

    assert {0, 11} < set(lengths)
    for layer in range(3):
        weights = attention[f"attention.{layer}"]  # [B, H, queries, keys]
        assert not weights.transpose(0, 3, 1, 2)[~valid].any()
        assert not weights.transpose(0, 2, 1, 3)[~valid].any()
        np.testing.assert_allclose(weights.sum(-1)[:, 0], valid, atol=1e-5)


def test_chosen_layers_are_explicit_and_the_others_fused(folders: dict[str, Path]) -> None:
    manifest = manifest_of(folders["chosen"])

    assert manifest["sizes"] == {"D": 16, "H": 2, "L": 3, "A": 2}
    graphs = manifest["graphs"]
    operators = graphs["attention"]["operators"]
    assert (operators["Softmax"], operators["MultiHeadAttention"]) == (2, 1)
    for graph, name in (("attention", "value_norms"), ("rows", "attention_rows")):
        (output,) = (tensor for tensor in graphs[graph]["outputs"] if tensor["name"] == name)
        assert (output["axes"][1], output["layers"]) == ("A", [0, 2])


def test_rows_are_rows_of_the_attention_graph(folders: dict[str, Path]) -> None:
    inputs = sample_inputs(CONFIG, RowsGraph(), 4, 11, seed=42)
    attention, rows, few = (
        run(folders[name], KINDS[kind]())
        for name, kind in (("every", "attention"), ("every", "rows"), ("chosen", "rows"))
    )
    every = np.stack([attention[f"attention.{layer}"] for layer in range(3)], axis=1)  # [B, L, H, T, T]
    expected = np.stack([one[:, :, row] for one, row in zip(every, inputs["rows"].numpy(), strict=True)])

    close(rows["attention_rows"], expected)
    close(few["attention_rows"], expected[:, [0, 2]])
    beyond = inputs["rows"].numpy() >= inputs["lengths"].numpy()[:, None]
    assert beyond.any()
    assert not rows["attention_rows"].transpose(0, 3, 1, 2, 4)[beyond].any()


@pytest.mark.slow
def test_rows_in_16_bits(tmp_path: Path) -> None:
    """The export itself compares them with PyTorch. Only the layer that is asked for has weights."""
    encoder = Encoder(replace(CONFIG, head_mask_input=True))
    options: dict[str, Any] = {"graphs": ["rows"], "attention_layers": [1], "precision": "fp16"}
    exported: Any = export_family(encoder, "half", tmp_path, **options)

    operators = manifest_of(exported.folder)["graphs"]["rows"]["operators"]
    assert (operators["PackedMultiHeadAttention"], operators["Softmax"]) == (3, 1)
    assert exported.parity.outputs["rows"]["attention_rows"].excess <= 1
    assert 1e-5 < exported.parity.drift.deviations["rows"]["attention_rows"] < 1e-2


def test_a_family_has_the_graphs_that_are_asked_for() -> None:
    assert [kind.name for kind in kinds_of(CONFIG)] == ["fast", "attention"]
    assert [kind.name for kind in kinds_of(CONFIG, ["rows"])] == ["fast", "attention", "rows"]
    every = [kind.name for kind in kinds_of(CONFIG, ["all"])]  # as it neither pools nor predicts contacts
    assert every == ["fast", "attention", "rows", "insight", "stream"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graphs": ["row"]}, "graphs must be some of fast, attention, rows.*, or all, was 'row'"),
        ({"attention_layers": [3]}, "must be from 0 to 2, as the encoder has 3 layers, were 3"),
        ({"attention_layers": [0, -1]}, "must be from 0 to 2, as the encoder has 3 layers, were 0, -1"),
        ({"attention_layers": [1, 1]}, "must be at least one, each once, were 1, 1"),
        ({"attention_layers": []}, "must be at least one, each once, were none"),
    ],
)
def test_what_a_family_cannot_have_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_family(Encoder(CONFIG), "small", tmp_path, **options)

    assert not any(tmp_path.iterdir())


def test_graphs_are_those_of_an_exporter_that_tests_have_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, kind = seeded(replace(MODERN, head_mask_input=True)), KINDS["rows"]()
    ours = build_graph(encoder, kind, pack=True)
    assert REPLACED
    for owner, name, original in REPLACED:
        monkeypatch.setattr(owner, name, original)

    theirs = build_graph(encoder, kind, pack=True)

    assert ir.to_proto(ours) == ir.to_proto(theirs)


def test_what_another_version_of_torch_records_is_decomposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead_export.graphs._TRANSLATIONS", {})
    encoder = Encoder(SMALL)

    export_family(encoder, "other", tmp_path)  # which compares the graphs with PyTorch
