"""Rotations, relative positions, windows and shared layers in exported graphs.

The export itself compares every graph with PyTorch, ragged, at lengths beyond windows and buckets.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from polyhead_export import export_family
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.kinds.insight import InsightGraph
from polyhead_model import Encoder, EncoderConfig

pytestmark = pytest.mark.usefixtures("one_thread")

MODERN = EncoderConfig(
    d_model=12,
    heads=2,
    layers=2,
    feed_forward=16,
    norm="pre",
    first_attention_norm=False,
    norm_bias=False,
    bias=False,
    gated=True,
    vocabulary=20,
    embedding_width=6,
    embedding_norm=True,
    token_dropout_id=3,
    rotary_base=50.0,
    local_rotary_base=9.0,
    local_window=6,
    global_every=2,
    relative_buckets=8,
    relative_distance=12,
    final_norm=True,
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
)
MASKED = EncoderConfig(d_model=8, heads=2, layers=2, local_window=6, global_every=2, mask_input=True)


def build(config: EncoderConfig) -> Encoder:
    """An encoder whose norms, biases and relative positions are random, too."""
    with torch.random.fork_rng():
        torch.manual_seed(43)
        encoder = Encoder(config).eval()
        with torch.no_grad():
            for name, parameter in encoder.named_parameters():
                if "norm" in name or name.endswith("bias") or "relative" in name:
                    parameter.normal_(0.5, 0.5)
    return encoder


def exported(config: EncoderConfig, folder: Path, **options: Any) -> dict[str, onnx.GraphProto]:
    """The graphs of a family, by file; the export has compared them with PyTorch."""
    version = export_family(build(config), "family", folder, **options).folder
    return {path.name: onnx.load(path, load_external_data=False).graph for path in version.glob("*.onnx")}


def added_to_scores(graph: onnx.GraphProto) -> list[str]:
    """What each fused attention adds to its scores, by name."""
    nodes = [node for node in graph.node if node.op_type == "MultiHeadAttention"]
    return [node.input[5] if len(node.input) > 5 else "" for node in nodes]


def test_every_kind_of_graph_of_a_modern_encoder(tmp_path: Path) -> None:
    graphs = exported(MODERN, tmp_path, graphs=["all"])

    whole, local = added_to_scores(graphs["model.onnx"])
    assert "" != whole != local != ""
    assert [node.op_type for node in graphs["model.onnx"].node].count("Cos") == 2  # one of each base
    assert added_to_scores(graphs["rows.onnx"]) == [whole, local]


def test_a_shared_layer_is_stored_once_in_16_bits(tmp_path: Path) -> None:
    graphs = exported(SHARED, tmp_path, graphs=["rows"], precision="fp16")

    assert len(set(added_to_scores(graphs["model.onnx"]))) == 1
    manifest = json.loads((tmp_path / "family" / "1" / "manifest.json").read_text())
    large = 2 * SHARED.d_model * 48 * 2  # the two matrices of the feed-forward network
    assert large <= manifest["files"]["weights.bin"]["bytes"] < 2 * large + 4 * 4096
    assert manifest["numbers"]["parameters"] == sum(each.numel() for each in build(SHARED).parameters())


def test_a_window_and_a_mask_of_the_request(tmp_path: Path) -> None:
    graphs = exported(MASKED, tmp_path)

    whole, local = added_to_scores(graphs["model.onnx"])
    assert "" != whole != local != ""


@pytest.mark.parametrize("kind", [FastGraph(), InsightGraph()])
def test_working_memory_counts_what_is_made_for_all_layers(kind: FastGraph | InsightGraph) -> None:
    whole = dataclasses.replace(MODERN, local_window=None, global_every=None, local_rotary_base=None)
    plain = dataclasses.replace(whole, relative_buckets=None, relative_distance=None)

    # A bias of each head, and one window.
    assert kind.maps(MODERN) >= kind.maps(plain) + MODERN.heads + 1
