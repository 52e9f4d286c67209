"""The graph that computes padding, which other exporters make."""

from pathlib import Path

import numpy as np

from benchmarks.compare.files import export_padded
from benchmarks.encoders import TINY_ENCODERS, export_missing, sequences
from benchmarks.graph import open_graph, pad_vectors


def test_it_computes_the_same(tmp_path: Path) -> None:
    models, encoder = tmp_path / "models", TINY_ENCODERS[1]
    export_missing([encoder], models)
    padded = export_padded(encoder.build().encoder, encoder.name, models)
    feed = pad_vectors(sequences(encoder, [3, 9, 5]))

    expected, found = (
        open_graph(each, 1).run(["output"], feed)[0] for each in (encoder.graph(models), padded)
    )

    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not padded.is_relative_to(models)
