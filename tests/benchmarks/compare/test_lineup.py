"""Who takes part where texts are embedded, and whose vectors are near enough."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.compare.files import EngineFiles
from benchmarks.compare.lineup import PADDED, engines_in_process, lowest_cosine, needs


def test_engines_have_processes_of_their_own_environment() -> None:
    files = EngineFiles(encoder="it", folder=Path("folder"))

    found = engines_in_process(files, Path("peers"))

    assert PADDED in found
    assert {model.kind: python == Path("peers") for python, model in found.values()} == {
        "onnxruntime": False,
        "openvino": False,
        "ctranslate2": True,
        "sentence-transformers": True,
    }
    assert {model.kind for _, model in engines_in_process(files, None).values()} == {
        "onnxruntime",
        "openvino",
    }


def test_vectors_of_any_length_are_compared() -> None:
    expected = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)

    found = lowest_cosine(np.array([[5.0, 0.0], [1.0, 1.0]], np.float32), expected)

    assert found == pytest.approx(0.5**0.5)
    shown = "\n".join(needs({"a": 100.0}, {"a": found, "started elsewhere": found}))
    assert "| a | 100 | 0.70711 |" in shown
    assert "| started elsewhere |  | 0.70711 |" in shown
