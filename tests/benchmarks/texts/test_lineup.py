"""Who takes part, and whose vectors are near enough."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.texts.files import EngineFiles
from benchmarks.texts.lineup import PADDED, cosines, engines_in_process


def test_engines_have_processes_of_their_own_environment() -> None:
    files = EngineFiles(encoder="it", repositories=Path("models"), folder=Path("folder"))

    found = engines_in_process(files, Path("peers"))

    assert PADDED in found
    assert {model.kind: python == Path("peers") for python, model in found.values()} == {
        "onnxruntime": False,
        "openvino": False,
        "ctranslate2": True,
        "sentence-transformers": True,
    }


def test_vectors_of_any_length_are_compared() -> None:
    expected = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)

    found = cosines(np.array([[5.0, 0.0], [1.0, 1.0]], np.float32), expected)

    assert found.lowest == pytest.approx(0.5**0.5)
    assert found.mean == pytest.approx((1 + 0.5**0.5) / 2)
