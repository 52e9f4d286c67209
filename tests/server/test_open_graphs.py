"""Graphs that no code of the server knows: their axes and roles say all that is needed to serve them."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tests.numerics import close
from tests.server.conftest import Running
from tests.server.graphs import OpenGraph

from polyhead_proto import messages as pb

D, H, L = 6, 2, 3
SIZES = {"D": D, "H": H, "L": L, "Top": 3}
TYPES = {"FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "INT32": TensorProto.INT32}
X = {"name": "x", "datatype": "FP32", "axes": ["B", "T", "D"]}
LENGTHS = {"name": "lengths", "datatype": "INT32", "axes": ["B"], "role": "lengths", "fill": "T"}
OUTPUT = {"name": "output", "datatype": "FP32", "axes": ["B", "T", "D"]}
RANDOM = np.random.default_rng(3)

Tensor = Mapping[str, Any]
Array = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Hand:
    """A graph made by hand."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    nodes: Sequence[onnx.NodeProto]
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def value(tensor: Tensor) -> onnx.ValueInfoProto:
    shape = [SIZES.get(letter, letter) for letter in tensor["axes"]]
    return helper.make_tensor_value_info(tensor["name"], TYPES[tensor["datatype"]], shape)


def write(models: Path, name: str, graphs: Mapping[str, Hand], **more: Any) -> None:
    """Write a family: ONNX files, and a manifest that describes their tensors."""
    folder = models / name / "1"
    folder.mkdir(parents=True)
    for graph, hand in graphs.items():
        model = helper.make_model(
            helper.make_graph(
                hand.nodes,
                graph,
                [value(tensor) for tensor in hand.inputs],
                [value(tensor) for tensor in hand.outputs],
                [numpy_helper.from_array(array, each) for each, array in hand.constants.items()],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        (folder / f"{graph}.onnx").write_bytes(model.SerializeToString())
    described = {
        graph: {"file": f"{graph}.onnx", "inputs": hand.inputs, "outputs": hand.outputs}
        for graph, hand in graphs.items()
    }
    manifest = {
        "format": 2,
        "name": name,
        "version": 1,
        "encoder": {"d_model": D, "heads": H, "layers": L},
        "precision": "fp32",
        "sizes": SIZES,
        "graphs": described | more,
        "files": {
            file.name: {
                "bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
            for file in folder.iterdir()
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


# `lengths` takes part in each graph, so that onnxruntime keeps it as an input.
PASS = (
    helper.make_node("Cast", ["lengths"], ["counts"], to=TensorProto.FLOAT),
    helper.make_node("Sub", ["counts", "counts"], ["nothing"]),
    helper.make_node("Unsqueeze", ["nothing", "inner"], ["nothing3"]),
)
INNER = {"inner": np.array([1, 2], np.int64)}
FAST = Hand(
    inputs=[X, LENGTHS],
    outputs=[OUTPUT],
    nodes=[*PASS, helper.make_node("Add", ["x", "nothing3"], ["output"])],
    constants=INNER,
)
SUMMARY = Hand(
    inputs=[X, LENGTHS],
    outputs=[
        {"name": "norms", "datatype": "FP32", "axes": ["B", "T"]},
        {"name": "total", "datatype": "FP32", "axes": ["B", "D"]},
    ],
    nodes=[
        *PASS,
        helper.make_node("Add", ["x", "nothing3"], ["kept"]),
        helper.make_node("ReduceL2", ["kept"], ["norms"], axes=[2], keepdims=0),
        helper.make_node("ReduceSum", ["kept", "tokens"], ["total"], keepdims=0),
    ],
    constants=INNER | {"tokens": np.array([1], np.int64)},
)
STRONGEST = Hand(
    inputs=[X, LENGTHS],
    outputs=[
        {"name": "strongest", "datatype": "FP32", "axes": ["B", "T", "Top"]},
        {"name": "places", "datatype": "INT32", "axes": ["B", "T", "Top"]},
    ],
    nodes=[
        *PASS,
        helper.make_node("Add", ["x", "nothing3"], ["kept"]),
        helper.make_node("TopK", ["kept", "three"], ["strongest", "indices"]),
        helper.make_node("Cast", ["indices"], ["places"], to=TensorProto.INT32),
    ],
    constants=INNER | {"three": np.array([3], np.int64)},
)
QUERY = {"name": "query", "datatype": "FP32", "axes": ["B", "T", "D"]}
MEMORY = {"name": "memory", "datatype": "FP32", "axes": ["B", "S", "D"]}
MEMORY_LENGTHS = {
    "name": "memory_lengths",
    "datatype": "INT32",
    "axes": ["B"],
    "role": "lengths",
    "fill": "S",
}
WEIGHTS = {
    "name": "weights",
    "datatype": "FP32",
    "axes": ["B", "H", "T", "S"],
    "role": "attention",
    "layer": 0,
}
CROSS = Hand(
    inputs=[QUERY, MEMORY, MEMORY_LENGTHS],
    outputs=[WEIGHTS],
    nodes=[
        helper.make_node("Transpose", ["memory"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query", "turned"], ["one"]),
        helper.make_node("Unsqueeze", ["one", "first"], ["scores1"]),
        helper.make_node("Mul", ["scores1", "factors"], ["scores"]),  # a factor for each head
        helper.make_node("Shape", ["memory"], ["shape"]),
        helper.make_node("Gather", ["shape", "where"], ["S"], axis=0),
        helper.make_node("Range", ["zero", "S", "step"], ["places"]),
        helper.make_node("Cast", ["memory_lengths"], ["ends"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["ends", "behind"], ["ends4"]),
        helper.make_node("Less", ["places", "ends4"], ["visible"]),
        helper.make_node("Where", ["visible", "scores", "far"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
    ],
    constants={
        "first": np.array([1], np.int64),
        "factors": np.array([1.0, 0.5], np.float32).reshape(H, 1, 1),
        "where": np.array(1, np.int64),
        "zero": np.array(0, np.int64),
        "step": np.array(1, np.int64),
        "behind": np.array([1, 2, 3], np.int64),
        "far": np.array(-1e9, np.float32),
    },
)
HALVES = Hand(
    inputs=CROSS.inputs,
    outputs=[WEIGHTS | {"datatype": "FP16"}],
    nodes=[
        *CROSS.nodes[:-1],
        helper.make_node("Softmax", ["masked"], ["wide"], axis=-1),
        helper.make_node("Cast", ["wide"], ["weights"], to=TensorProto.FLOAT16),
    ],
    constants=CROSS.constants,
)


def cross(query: Array, memory: Array, lengths: NDArray[np.int32]) -> Array:
    """What CROSS computes, in a plain loop: weights [B, H, T, S]."""
    weights = np.zeros((len(query), H, query.shape[1], memory.shape[1]), np.float32)
    for b, length in enumerate(lengths):
        for h, factor in enumerate((1.0, 0.5)):
            for t, vector in enumerate(query[b]):
                scores = np.exp(factor * memory[b, :length] @ vector)
                weights[b, h, t, :length] = scores / scores.sum()
    return weights


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    write(folder, "third", {"fast": FAST, "summary": SUMMARY, "strongest": STRONGEST})
    write(folder, "cross", {"fast": CROSS, "halves": HALVES})
    return folder


def together(
    models: Path, name: str, graph: str, requests: Sequence[Mapping[str, Any]], device: str
) -> Sequence[Any]:
    """Run requests as one batch."""
    opened = OpenGraph(models, name, graph, device)
    works = [opened.work(feeds) for feeds in requests]
    result = opened.run(works)
    assert (result.execution.requests, result.execution.sequences) == (
        len(works),
        sum(work.size.rows for work in works),
    )
    return result.outputs


def test_a_third_graph_is_batched_and_cut(models: Path, device: str) -> None:
    xs = [floats(2, 3, D), floats(1, 7, D), floats(1, 1, D)]
    requests = [{"x": x, "lengths": np.full(len(x), x.shape[1], np.int32)} for x in xs]

    for x, outputs in zip(xs, together(models, "third", "summary", requests, device), strict=True):
        np.testing.assert_allclose(outputs["norms"], np.linalg.norm(x, axis=2), atol=1e-5)
        np.testing.assert_allclose(outputs["total"], x.sum(1), atol=1e-5)


def test_two_lengths_are_padded_and_cut_each_by_itself(models: Path, device: str) -> None:
    sizes = [(2, 3, 5), (1, 6, 2), (3, 1, 1), (1, 3, 5)]
    queries = [floats(b, t, D) for b, t, _ in sizes]
    memories = [floats(b, s, D) for b, _, s in sizes]
    lengths = [RANDOM.integers(1, s + 1, b).astype(np.int32) for b, _, s in sizes]
    requests: list[dict[str, Any]] = [
        {"query": query, "memory": memory, "memory_lengths": length}
        for query, memory, length in zip(queries, memories, lengths, strict=True)
    ]

    for request, outputs in zip(requests, together(models, "cross", "fast", requests, device), strict=True):
        close(outputs["weights"], cross(*request.values()))


def test_all_of_them_are_served(models: Path, serve: Any) -> None:
    server: Running = serve(models=models)
    x = floats(2, 4, D)
    assert server.infer("third", {"x": x})["output"].tolist() == x.tolist()
    summary = server.infer("third.summary", {"x": x})
    np.testing.assert_allclose(summary["norms"], np.linalg.norm(x, axis=2), atol=1e-5)

    query, memory = floats(2, 4, D), floats(2, 9, D)
    lengths = np.array([9, 3], np.int32)
    expected = cross(query, memory, lengths)
    inputs = {"query": query, "memory": memory, "memory_lengths": lengths}
    close(server.infer("cross", inputs)["weights"], expected)
    chosen = {"weights": {"heads": "1", "queries": "3,0"}}
    some = server.infer("cross", inputs, outputs=chosen)["weights"]
    close(some, expected[:, [1]][:, :, [3, 0]])
    full = server.infer("cross", {"query": query, "memory": memory})["weights"]
    close(full, cross(query, memory, np.array([9, 9], np.int32)))


def test_weights_in_16_bits_are_fp32_on_the_wire_unless_asked_otherwise(models: Path, serve: Any) -> None:
    server: Running = serve(models=models)
    query, memory = floats(2, 4, D), floats(2, 9, D)
    inputs = {"query": query, "memory": memory}
    wide = server.infer("cross", inputs)["weights"]
    metadata = server.call("ModelMetadata", pb.ModelMetadataRequest(name="cross.halves"))

    assert [each.datatype for each in metadata.outputs] == ["FP32"]
    whole = server.infer("cross.halves", inputs)["weights"]
    assert whole.dtype == np.float32
    assert whole.tobytes() == wide.astype(np.float16).astype(np.float32).tobytes()
    chosen = {"weights": {"heads": "1", "dtype": "FP16"}}
    half = server.infer("cross.halves", inputs, outputs=chosen)["weights"]
    assert half.dtype == np.float16
    assert half.tobytes() == wide[:, [1]].astype(np.float16).tobytes()
    few = server.infer("cross.halves", inputs, outputs={"weights": {"dtype": "UINT8"}})["weights"]
    np.testing.assert_allclose(few, wide * 255, atol=0.6)


def test_the_first_of_the_strongest_are_selected(models: Path, serve: Any) -> None:
    server: Running = serve(models=models)
    x = floats(2, 4, D)
    result = server.infer("third.strongest", {"x": x}, parameters={"top": 2, "dtype": "FP16"})

    places = np.argsort(-x, axis=-1)[..., :2]
    np.testing.assert_array_equal(result["places"], places)
    np.testing.assert_allclose(result["strongest"], np.take_along_axis(x, places, axis=-1), rtol=1e-3)
    assert result.datatypes == {"strongest": "FP16", "places": "INT32"}
    for parameters, message in (
        ({"top": 4}, r"parameter top of output places must be between 1 and Top \(3\), was 4"),
        ({"top": 0}, "parameter top of output places must be a whole number of at least 1, was 0"),
        ({"top": -1}, "parameter top of output places must be a whole number of at least 1, was -1"),
        ({"dtype": "FP16"}, "parameter dtype FP16 does not apply to output places"),
    ):
        with pytest.raises(grpc.RpcError, match=message):
            server.infer("third.strongest", {"x": x}, outputs={"places": parameters})


def test_what_is_wrong_is_said_in_their_own_words(models: Path, serve: Any) -> None:
    server: Running = serve(models=models)
    query, memory = floats(1, 2, D), floats(1, 2, D)
    for inputs, message in (
        ({"memory": memory}, "input query is missing: it must be given as FP32 or FP16 (B, T, D)"),
        ({"query": query, "memory": floats(2, 2, D)}, "dimension 0 (B) of memory must be 1, was 2"),
        (
            {"query": query, "memory": memory, "memory_lengths": np.array([3], np.int32)},
            "memory_lengths[0] must be between 0 and S (2), was 3",
        ),
    ):
        assert message in server.rejected("cross", inputs)


def test_a_graph_that_cannot_be_described_is_passed_by_with_one_line(
    tmp_path: Path, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strange = {"file": "fast.onnx", "inputs": [X], "outputs": [{**OUTPUT, "datatype": "COMPLEX64"}]}
    write(tmp_path, "third", {"fast": FAST, "summary": SUMMARY}, strange=strange)
    with caplog.at_level(logging.WARNING, logger="polyhead.server"):
        server = serve(models=tmp_path)
        x = floats(1, 2, D)

        assert server.infer("third", {"x": x})["output"].tolist() == x.tolist()
    assert set(server.infer("third.summary", {"x": x}).outputs) == {"norms", "total"}
    logged = [record.getMessage() for record in caplog.records if "strange" in record.getMessage()]
    assert len(logged) == 1
    assert logged[0].startswith("third: graph strange is not served: outputs.0: Value error, datatype must")
