"""Weights beyond the 2 GiB that one protobuf message holds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exports import session_of

from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig


@pytest.mark.slow
def test_more_than_two_gibibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Comparing at other sizes, too, would only take time: all of the weights are read for each.
    monkeypatch.setattr("polyhead_export.parity._SIZES", ((2, 5),))
    # A vocabulary is the cheapest way to many weights: it is stored, but hardly computed with.
    config = EncoderConfig(d_model=1024, heads=8, layers=1, vocabulary=540_000)
    encoder = Encoder(config).eval()
    exported = export_family(encoder, "large", tmp_path)

    assert (exported.folder / "weights.bin").stat().st_size > 2 * 2**30
    assert exported.parity.worst.excess <= 1
    last = np.array([[config.vocabulary or 0]], dtype=np.int64) - 1
    (output,) = session_of(exported.folder / "model.onnx").run(
        None, {"input_ids": last, "lengths": np.array([1], dtype=np.int32)}
    )
    with torch.inference_mode():
        np.testing.assert_allclose(output, encoder(torch.from_numpy(last)).output.numpy(), atol=1e-5)
