"""Rotations, relative positions, windows and shared layers in exported graphs.

The export itself compares every graph with PyTorch, ragged, at lengths beyond windows and buckets.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
import torch
from tests import encoders
from tests.encoders import draw_norms_and_biases, seeded
from tests.exports import manifest_of

from polyhead_export import export_family
from polyhead_export.constants import norm_maps_of
from polyhead_export.forward_pass import run_forward
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.kinds.insight import InsightGraph
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.attention_config import Disentangled
from polyhead_model.task_heads import Classifier, Convolution, Dense

MODERN = dataclasses.replace(
    encoders.MODERN,
    embedding_width=6,
    embedding_norm=True,
    token_dropout_id=3,
    relative_buckets=8,
    relative_distance=12,
    pooling="mean",
)
SHARED = EncoderConfig(
    d_model=12,
    heads=2,
    layers=2,
    feed_forward=48,
    shared_layers=True,
    causal=True,
    local_window=4,
    relative_buckets=6,
    relative_distance=9,
    classifier=Classifier(
        labels=("a", "b", "c"), pooling="mean", pools_logits=True, dense=(Dense(width=5, activation="gelu"),)
    ),
)
DISENTANGLED = dataclasses.replace(
    encoders.BERT,
    types=0,
    position_embeddings=False,
    embedding_width=6,
    projection_first=True,
    disentangled=Disentangled(terms=("c2p", "p2c"), span=8, distance=20, shared=True, norm=True),
    convolution=Convolution(width=3, activation="gelu"),
    pooling="cls",
)
MASKED = EncoderConfig(d_model=8, heads=2, layers=2, local_window=6, global_every=2, mask_input=True)


def build(config: EncoderConfig) -> Encoder:
    """An encoder whose norms, biases and relative positions are random, too."""
    return seeded(config, 43, change=draw_norms_and_biases)


@contextmanager
def traced_once() -> Iterator[None]:
    """No export may need the decompositions, for which the exporter traces a graph again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
        yield


def graphs_of(version: Path) -> dict[str, onnx.GraphProto]:
    """The graphs of a version, by file; the export has compared them with PyTorch."""
    return {path.name: onnx.load(path, load_external_data=False).graph for path in version.glob("*.onnx")}


def added_to_scores(graph: onnx.GraphProto) -> list[str]:
    """What each fused attention adds to its scores, by name."""
    bias = {"MultiHeadAttention": 5, "Attention": 3}
    fused = [(node.input, bias[node.op_type]) for node in graph.node if node.op_type in bias]
    return [inputs[at] if len(inputs) > at else "" for inputs, at in fused]


@pytest.mark.slow
def test_every_kind_of_graph_of_a_modern_encoder(architectures: Path) -> None:
    graphs = graphs_of(architectures / "modern" / "1")

    whole, local = added_to_scores(graphs["model.onnx"])
    assert "" != whole != local != ""
    assert [node.op_type for node in graphs["model.onnx"].node].count("Cos") == 2  # one of each base
    assert added_to_scores(graphs["rows.onnx"]) == [whole, local]


@pytest.mark.slow
def test_every_kind_of_graph_of_a_disentangled_encoder(architectures: Path) -> None:
    graphs = graphs_of(architectures / "disentangled" / "1")

    first, second = added_to_scores(graphs["model.onnx"])
    assert "" != first != second != ""
    assert added_to_scores(graphs["rows.onnx"]) == [first, second]
    # The keys and queries of positions are constants, so that neither their table nor its norm is there.
    weights = graphs["model.onnx"].initializer
    assert [tuple(each.dims) for each in weights].count((2, 2 * 8, 8)) == 2 * DISENTANGLED.layers
    assert not any("relative_positions" in each.name for each in weights)


@pytest.mark.slow
def test_a_disentangled_encoder_with_projections_of_its_own_in_16_bits(tmp_path: Path) -> None:
    own = dataclasses.replace(DISENTANGLED.disentangled, shared=False)  # type: ignore[type-var]
    config = dataclasses.replace(DISENTANGLED, disentangled=own)
    kinds = ("fast", "attention", "rows", "pooled")
    with traced_once():
        version = export_family(build(config), "family", tmp_path, precision="fp16", graphs=kinds).folder

    assert set(graphs_of(version)) == {"model.onnx", "attention.onnx", "rows.onnx", "pooled.onnx"}
    assert all(added_to_scores(graphs_of(version)["model.onnx"]))


@pytest.mark.slow
def test_a_shared_layer_is_stored_once_in_16_bits(tmp_path: Path) -> None:
    with traced_once():
        version = export_family(build(SHARED), "family", tmp_path, precision="fp16").folder

    graphs = graphs_of(version)
    assert len(set(added_to_scores(graphs["model.onnx"]))) == 1
    manifest = manifest_of(version)
    large = 2 * SHARED.d_model * 48 * 2  # the two matrices of the feed-forward network
    assert large <= manifest["files"]["weights.bin"]["bytes"] < 2 * large + 4 * 4096
    assert manifest["numbers"]["parameters"] == sum(each.numel() for each in build(SHARED).parameters())


@pytest.mark.slow
def test_a_window_and_a_mask_of_the_request(architectures: Path) -> None:
    graphs = graphs_of(architectures / "windowed" / "1")

    whole, local = added_to_scores(graphs["model.onnx"])
    assert "" != whole != local != ""


def test_scores_with_windows_do_not_depend_on_padding_far_away() -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1, local_window=4)
    encoder, kind = build(config), InsightGraph()
    with torch.no_grad():
        encoder.get_parameter("layers.0.w_o.weight").mul_(10)  # norms of values above 1
    maps = norm_maps_of(encoder, compact=True)
    padded = sample_inputs(config, kind, 1, 20, seed=0) | {"lengths": torch.tensor([7], dtype=torch.int32)}
    alone = padded | {"x": padded["x"][:, :7]}
    with torch.inference_mode():
        (scores, weighted, *_), (its_scores, its_weighted, *_) = (
            kind.compute(
                config,
                inputs,
                run_forward(encoder, inputs, explicit=[0], norm_maps=maps, masks_by_bias=True),
            )
            for inputs in (padded, alone)
        )

    torch.testing.assert_close(scores, its_scores, equal_nan=True)
    torch.testing.assert_close(weighted, its_weighted, equal_nan=True)


@pytest.mark.parametrize("kind", [FastGraph(), InsightGraph()])
def test_working_memory_counts_what_is_made_for_all_layers(kind: FastGraph | InsightGraph) -> None:
    whole = dataclasses.replace(MODERN, local_window=None, global_every=None, local_rotary_base=None)
    plain = dataclasses.replace(whole, relative_buckets=None, relative_distance=None)

    # A bias of each head, and one window.
    assert kind.maps(MODERN) >= kind.maps(plain) + MODERN.heads + 1
    # Products with twice as many positions, and what they become.
    without = dataclasses.replace(DISENTANGLED, disentangled=None)
    assert kind.maps(DISENTANGLED) >= kind.maps(without) + 5 * DISENTANGLED.heads
