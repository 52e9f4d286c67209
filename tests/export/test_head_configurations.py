"""Exports of heads that share keys and values, and of heads of different widths.

The export itself compares every graph with PyTorch, ragged, at sizes that were not traced. What checkpoints
have is in test_model_types.py, in every kind and precision; here is what none has.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.encoders import BERT, draw_norms_and_biases, seeded
from tests.exports import manifest_of

from polyhead_export import export_family
from polyhead_export.precision import Precision
from polyhead_model import Encoder, EncoderConfig

BASE = replace(BERT, d_model=32, heads=4, layers=2, types=0, positions=130, pooling="cls")
CONFIGS = {
    "grouped": replace(BASE, kv_heads=2, fused=True, kept_heads=((0, 1, 2, 3), (0, 1, 3))),
    "multi-query": EncoderConfig(
        d_model=32, heads=4, layers=2, kv_heads=1, mask_input=True, head_mask_input=True
    ),
    "widths": replace(BASE, head_widths=((8, 4, 2, 6), (3, 8, 1, 8))),
    "norms of groups": replace(BASE, qk_layer_norm=True, kv_heads=2, fused=True, gated=True, up_bias=False),
}

FORMS: list[tuple[str, Precision, list[str]]] = [
    ("grouped", "fp32", ["insight", "rows"]),
    ("multi-query", "fp32", ["insight"]),
    ("widths", "fp32", ["all"]),
    ("grouped", "int8", []),
    ("grouped", "fp16", ["rows"]),
    ("widths", "int8", []),
    ("widths", "fp16", []),
    ("norms of groups", "fp16", []),
]


def build(name: str) -> Encoder:
    return seeded(CONFIGS[name], 43, change=draw_norms_and_biases)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision", "graphs"), FORMS)
def test_every_graph_computes_the_encoder(
    name: str, precision: Precision, graphs: list[str], tmp_path: Path
) -> None:
    version = export_family(build(name), "family", tmp_path, precision=precision, graphs=graphs).folder

    manifest = manifest_of(version)
    if precision in {"fp32", "int8"}:  # which neighbours change nothing of
        moved = {
            output
            for outputs in manifest["parity"]["neighbours"].values()
            for output, change in outputs.items()
            if change["largest"] != 0
        }
        assert moved <= {"head_scores", "weighted_scores"}  # docs/precision.md
    if precision == "fp32":
        assert manifest["numbers"]["parameters"] == sum(each.numel() for each in build(name).parameters())
