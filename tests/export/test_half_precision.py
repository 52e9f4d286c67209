"""16 bits emulated in 32."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto, helper
from tests.encoders import seeded
from tests.exports import session_of

from polyhead_export import ParityError, export_family
from polyhead_export.evaluation import evaluate
from polyhead_export.fusion import fuse
from polyhead_export.half_precision import widen
from polyhead_model import EncoderConfig

NARROW: dict[int, DTypeLike] = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}


def scaled_sum(narrow: int) -> ir.Model:
    """(x + b) · b + b in 16 bits, from and to 32; b = 1/3."""
    b = helper.make_tensor("b", narrow, [], [1 / 3])
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=narrow),
        helper.make_node("Add", ["narrow", "b"], ["sum"]),
        helper.make_node("Mul", ["sum", "b"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["result"]),
        helper.make_node("Cast", ["result"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "scaled_sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
        [b],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def run(model: ir.Model, x: NDArray[np.float32], folder: Path) -> NDArray[np.float32]:
    ir.save(model, folder / "model.onnx")
    result: NDArray[np.float32] = session_of(folder / "model.onnx").run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize("narrow", NARROW)
def test_every_result_is_rounded(narrow: int, tmp_path: Path) -> None:
    x = np.random.default_rng(4).standard_normal(500, dtype=np.float32)
    dtype = NARROW[narrow]

    def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values.astype(dtype).astype(np.float32)

    b = rounded(np.array([1 / 3], np.float32))
    expected = rounded(rounded(rounded(rounded(x) + b) * b) + b)

    np.testing.assert_array_equal(run(widen(scaled_sum(narrow), rounding=True), x, tmp_path), expected)


@pytest.mark.parametrize("narrow", NARROW)
def test_only_weights_are_rounded(narrow: int, tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal(500, dtype=np.float32)
    b = np.array([1 / 3], np.float32).astype(NARROW[narrow]).astype(np.float32)

    result = run(widen(scaled_sum(narrow), rounding=False), x, tmp_path)

    np.testing.assert_allclose(result, (x + b) * b + b, rtol=1e-6)


@pytest.mark.parametrize("narrow", NARROW)
def test_float64_is_not_rounded_in_between(narrow: int) -> None:
    """What an encoder multiplies would be off by more than a constant's rounding explains."""
    x = np.random.default_rng(6).standard_normal(500)
    b = np.array(1 / 3).astype(NARROW[narrow]).astype(np.float64)

    (result,) = evaluate(widen(scaled_sum(narrow), rounding=False), ["y"], {"x": x})

    np.testing.assert_allclose(result, (x + b) * b + b, rtol=1e-14)


def test_a_mistake_in_a_fused_operator_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is too small for a comparison in fp32: what is served is evaluated in float64, too."""

    def fuse_wrongly(model: ir.Model) -> None:
        fuse(model)
        norm = next(node for node in model.graph if node.op_type == "SkipLayerNormalization")
        norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-12 + 5e-7)

    monkeypatch.setattr("polyhead_export.version.fuse", fuse_wrongly)
    config = EncoderConfig(d_model=16, heads=2, layers=1, feed_forward=24, layer_norm_epsilon=1e-12)

    with pytest.raises(
        ParityError, match=r"'output' must be what PyTorch gives where both compute in float64"
    ):
        export_family(seeded(config, 6), "wrong", tmp_path, precision="fp16")
