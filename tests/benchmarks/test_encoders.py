"""The graph that computes padding, the limit of mixed lengths."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.encoders import (
    GRAPH,
    BenchEncoder,
    computes_padding,
    export_missing,
    export_padded_limit,
    feed_of,
    sequences,
)
from benchmarks.peers.graph import open_graph
from polyhead_model import EncoderConfig

ENCODER = BenchEncoder(
    name="small", config=EncoderConfig(d_model=16, heads=2, layers=1, feed_forward=32), tokens=4
)


def test_it_computes_the_same(tmp_path: Path) -> None:
    models = tmp_path / "models"
    export_missing([ENCODER], models)
    served = models / "small" / "1" / GRAPH
    padded = export_padded_limit(ENCODER, models) / "small" / "1" / GRAPH
    feed = feed_of(sequences(ENCODER, [3, 9, 5]))

    expected, found = (open_graph(each, 1).run(["output"], feed)[0] for each in (served, padded))

    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not padded.is_relative_to(models)


@pytest.mark.parametrize(
    ("described", "padded"),
    [
        ({}, True),
        ({"activations": ["B", "T", "D"]}, True),
        ({"activations": ["N", "D"]}, False),
    ],
)
def test_the_manifest_says_what_is_computed(
    tmp_path: Path, described: dict[str, object], padded: bool
) -> None:
    graphs = {"attention": {"file": "attention.onnx"}, "fast": {"file": GRAPH, **described}}
    (tmp_path / "manifest.json").write_text(json.dumps({"graphs": graphs}))

    assert computes_padding(tmp_path / GRAPH) is padded
    assert computes_padding(tmp_path / "attention.onnx")
