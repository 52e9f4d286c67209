"""Exports of checkpoints as their authors publish them, held to the formulas that hold their loading, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file
from tests.formulas import Formulas, write
from tests.model import test_hf_esmc as esmc
from tests.model import test_hf_gte as gte
from tests.model import test_hf_jina as jina
from tests.model import test_hf_neobert as neobert

from polyhead_export.command import app


@dataclass(frozen=True)
class Published:
    """A checkpoint of random weights."""

    config: Mapping[str, Any]
    shapes: Mapping[str, list[int]]
    formulas: Formulas
    options: tuple[str, ...] = ()


PUBLISHED = {
    "esmc": Published(esmc.CONFIG, esmc.shapes(), esmc.formulas),
    "new": Published(gte.CONFIG, gte.shapes(gte.CONFIG), gte.formulas),
    "neobert": Published(neobert.CONFIG, neobert.shapes(), neobert.formulas),
    "jina": Published(
        jina.CONFIG, jina.shapes(), jina.formulas_of("text-matching"), ("--task", "text-matching")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_graphs_compute_the_formulas(name: str, tmp_path: Path) -> None:
    """Of text in padding, at a length that was not traced."""
    each = PUBLISHED[name]
    write(tmp_path / name, each.config, each.shapes)
    arguments = ["--checkpoint", str(tmp_path / name), *each.options, "--models", str(tmp_path / "models")]
    app(arguments, exit_on_error=False, result_action="return_value")

    tensors = load_file(tmp_path / name / "model.safetensors")
    weights = {key: tensor.double() for key, tensor in tensors.items()}
    ids = torch.randint(0, each.config["vocab_size"], (2, 17))
    feed = {"input_ids": ids.numpy(), "lengths": np.array([17, 9], np.int32)}
    for graph in ("model.onnx", "attention.onnx"):
        session = ort.InferenceSession(
            tmp_path / "models" / name / "1" / graph, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        results = dict(zip(names, session.run(None, feed), strict=True))
        for row, length in enumerate((17, 9)):
            output, attention = each.formulas(weights, each.config, ids[row, :length].tolist())
            np.testing.assert_allclose(results["output"][row, :length], output, rtol=0, atol=5e-5)
            if graph == "attention.onnx":
                for layer, theirs in enumerate(attention):
                    ours = results[f"attention.{layer}"][row, :, :length, :length]
                    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5)
