"""What of a graph follows from which operators."""

from pathlib import Path

import onnx
from onnx.parser import parse_model

from polyhead_server.engine.dataflow import outputs_after

GRAPH = """<ir_version: 8, opset_import: ["": 17]>
g (float[B, T] x) => (float[B, T] logs, float[B, T] later, float[B, T] before, float[B, T] shaped) {
    before = Relu(x)
    logs = Log(before)
    later = Add(x, logs)
    shape = Shape(logs)
    shaped = Expand(x, shape)
}"""


def test_what_follows_from_an_operator_and_not_from_a_shape(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parse_model(GRAPH), path)

    assert outputs_after(path, {"Log"}) == {"logs", "later"}
    assert outputs_after(path, {"Relu", "Mish"}) == {"before", "logs", "later"}
    assert outputs_after(path, ()) == frozenset()
