"""Who takes part where texts are embedded, what they are sent, and whose vectors are near enough."""

from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.compare.files import EngineFiles
from benchmarks.compare.lineup import PADDED, TextServer, engines_in_process, lowest_cosine, needs
from benchmarks.contenders import Contender
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import unpack_strings

CONTENDER = Contender(name="it", address="127.0.0.1:1", process=psutil.Process())


def test_requests_hold_so_many_texts() -> None:
    server = TextServer(contender=CONTENDER, model="minilm")

    requests = [pb.ModelInferRequest.FromString(each) for each in server.requests(["a", "bä", "c"], 2)]

    assert [list(each.inputs[0].shape) for each in requests] == [[2], [1]]
    assert unpack_strings("text", [2], requests[0].raw_input_contents[0]) == [b"a", "bä".encode()]
    assert requests[0].model_name == "minilm"


def test_requests_hold_token_ids() -> None:
    server = TextServer(contender=CONTENDER, model="minilm")

    requests = [pb.ModelInferRequest.FromString(each) for each in server.requests([[5, 6], [7, 8], [9]], 2)]

    assert [(each.name, list(each.shape)) for each in requests[0].inputs] == [
        ("input_ids", [2, 2]),
        ("token_type_ids", [2, 2]),
        ("lengths", [2]),
    ]
    assert list(requests[1].inputs[0].shape) == [1, 1]


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
