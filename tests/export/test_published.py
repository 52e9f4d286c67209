"""Exports of checkpoints as their authors publish them, held to the formulas that their loading is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file
from tests.model import test_hf_gte as gte
from tests.published import Formulas, write

from polyhead_export import export_family
from polyhead_model import load_checkpoint

WRITTEN: dict[str, tuple[Callable[[Path], object], Formulas, dict[str, object]]] = {
    "new": (lambda folder: write(folder, gte.CONFIG, gte.shapes(gte.CONFIG)), gte.formulas, gte.CONFIG),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_graphs_compute_the_formulas(name: str, tmp_path: Path) -> None:
    """Of text in padding, at a length that was not traced."""
    save, formulas, config = WRITTEN[name]
    save(tmp_path / "checkpoint")
    encoder = load_checkpoint(tmp_path / "checkpoint").encoder
    version = export_family(encoder, name.lower(), tmp_path / "models").folder

    tensors = load_file(tmp_path / "checkpoint" / "model.safetensors")
    weights = {key: each.double() for key, each in tensors.items()}
    ids = torch.randint(0, encoder.config.vocabulary or 0, (2, 17))
    feed = {"input_ids": ids.numpy(), "lengths": np.array([17, 9], np.int32)}
    for graph in ("model.onnx", "attention.onnx"):
        session = ort.InferenceSession(version / graph, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        results = dict(zip(names, session.run(None, feed), strict=True))
        for row, length in enumerate((17, 9)):
            output, attention = formulas(weights, config, ids[row, :length].tolist())
            np.testing.assert_allclose(results["output"][row, :length], output, rtol=0, atol=5e-5)
            if graph == "attention.onnx":
                for layer, theirs in enumerate(attention):
                    ours = results[f"attention.{layer}"][row, :, :length, :length]
                    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5)
