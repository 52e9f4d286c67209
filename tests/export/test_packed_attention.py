"""Attention to packed tokens: verified without the kernels that it is for, and used where they do all."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.encoders import BERT, draw_norms_and_biases, seeded
from tests.exports import manifest_of, session_of

from polyhead_export import ParityError, export_family
from polyhead_export.cuda_operators import OPERATORS
from polyhead_export.evaluation import evaluate
from polyhead_export.fusion import fuse, fuse_packed
from polyhead_export.graphs import build_graph
from polyhead_export.half_precision import JudgeInHalfPrecision, for_cpu, widen
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.kinds.rows import RowsGraph
from polyhead_export.parity import reference_outputs
from polyhead_export.precision import in_precision
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, outputs_of, packs
from polyhead_export.weights import names_of, share_weights
from polyhead_model import Encoder, EncoderConfig
from polyhead_model.attention_config import Disentangled

CONFIG = replace(BERT, d_model=32, heads=4, feed_forward=48, vocabulary=50, positions=40, pooling="mean")
VECTORS = EncoderConfig(d_model=32, heads=2, layers=2, feed_forward=48)
VARIANTS = {
    "token ids": CONFIG,
    "factors of heads": replace(CONFIG, head_mask_input=True, kept_heads=((0, 2), (1,))),
    "rotations, pre-norm, gated": replace(
        VECTORS, rotary_base=100.0, norm="pre", final_norm=True, gated=True, bias=False
    ),
    "padding ids": replace(CONFIG, padding_id=1, pooling="last"),
    "attention alone": replace(VECTORS, feed_forward=None),
    "own head width, tanh": replace(VECTORS, head_width=24, activation="gelu_tanh"),
}


@cache
def rounded(variant: str) -> Encoder:
    return in_precision(seeded(VARIANTS[variant], 41, change=draw_norms_and_biases), "fp16")


@cache
def traced(variant: str, kind: GraphKind) -> ir.Model:
    return build_graph(rounded(variant), kind, pack=True)


def served(variant: str, kind: GraphKind, longest: int | None) -> ir.Model:
    model = traced(variant, kind).clone()
    fuse(model)
    fuse_packed(model, longest)
    return model


def operators_of(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph} & OPERATORS


@pytest.mark.parametrize(
    ("longest", "operator"), [(256, "PackedAttention"), (257, "PackedMultiHeadAttention")]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_graphs_agree_with_pytorch(variant: str, longest: int, operator: str) -> None:
    config, kind = VARIANTS[variant], FastGraph()
    model = served(variant, kind, longest)
    names = [spec.name for spec in outputs_of(config, kind)]
    session = session_of(for_cpu(model, rounding=False))

    rotated = config.rotary_base is not None  # between the projection and attention
    assert operators_of(model) == {"PackedMultiHeadAttention" if rotated else operator}
    moved = [node for node in model.graph if node.op_type in {"Squeeze", "Unsqueeze"}]
    is_float = any(node.outputs[0].dtype == ir.DataType.FLOAT16 for node in moved)
    assert not is_float or variant != "token ids"  # which are computed as [N, …] throughout
    for seed, size in enumerate([(4, 19), (1, 1), (1, 30), (7, 2)], start=42):
        inputs = sample_inputs(config, kind, *size, seed=seed)
        expected = reference_outputs(copy.deepcopy(rounded(variant)).float(), kind, inputs)
        feeds = {name: value.numpy() for name, value in inputs.items()}
        exact = evaluate(widen(model, rounding=False), names, feeds)
        for name, by_offsets, by_lengths in zip(names, session.run(names, feeds), exact, strict=True):
            np.testing.assert_allclose(by_offsets, expected[name], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(by_lengths, expected[name], rtol=1e-4, atol=1e-4)


def attribute(to: ir.Attr) -> Callable[[ir.Node], None]:
    def plant(node: ir.Node) -> None:
        node.attributes[to.name] = to

    return plant


def swap(first: int, second: int) -> Callable[[ir.Node], None]:
    def plant(node: ir.Node) -> None:
        one, other = node.inputs[first], node.inputs[second]
        node.replace_input_with(first, other)
        node.replace_input_with(second, one)

    return plant


def replaced(place: int, operator: str, operand: int) -> Callable[[ir.Node], None]:
    """Put an operator before an input."""

    def plant(node: ir.Node) -> None:
        value = node.inputs[place]
        assert value is not None
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array([operand], np.int32))})
        planted = ir.node(operator, [value, constant.outputs[0]])
        constant.outputs[0].name, planted.outputs[0].name = "operand", "planted"
        assert node.graph is not None
        node.graph.insert_before(node, [constant, planted])
        node.replace_input_with(place, planted.outputs[0])

    return plant


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ir.Model], object]:
    folder, kind = tmp_path_factory.mktemp("judged"), RowsGraph()
    encoder = seeded(CONFIG, 41, change=draw_norms_and_biases)

    def judge(model: ir.Model) -> object:
        share_weights([model], folder, names_of(rounded("token ids")))
        ir.save(model, folder / kind.file)
        plain: dict[GraphKind, ir.Model] = {kind: traced("token ids", kind).clone()}
        return JudgeInHalfPrecision(encoder, rounded("token ids"), folder, plain, "fp16").judge(kind)

    return judge


@pytest.mark.parametrize(
    "plant",
    [
        attribute(ir.AttrFloat32("scale", 8**-0.5 * 1.001)),
        attribute(ir.AttrInt64("num_heads", 2)),
        swap(0, 1),
        swap(1, 2),
        replaced(4, "Max", 1),
        replaced(4, "BitwiseXor", 1),
        replaced(5, "Max", 1),
    ],
    ids=["scale", "heads", "queries and keys", "keys and values", "an offset", "order", "lengths"],
)
def test_a_planted_mistake_is_refused(
    plant: Callable[[ir.Node], None], judge: Callable[[ir.Model], object]
) -> None:
    model = served("token ids", RowsGraph(), None)
    plant(next(node for node in model.graph if node.op_type in OPERATORS))

    with pytest.raises(ParityError):
        judge(model)


def test_what_is_planted_into_is_accepted(judge: Callable[[ir.Model], object]) -> None:
    judge(served("token ids", RowsGraph(), None))


def test_every_graph_of_an_fp16_family_is_packed(tmp_path: Path) -> None:
    graphs = ["pooled", "rows", "insight", "stream"]
    config = replace(CONFIG, pooling="cls")
    export_family(
        seeded(config, 41, change=draw_norms_and_biases), "packed", tmp_path, precision="fp16", graphs=graphs
    )
    records = manifest_of(tmp_path / "packed" / "1")["graphs"]

    assert {"fast", "attention", *graphs} == records.keys()
    assert all(record["activations"] == ["N", "D"] for record in records.values())
    weights = [each for each in records["attention"]["outputs"] if each["name"].startswith("attention.")]
    assert {each["datatype"] for each in weights} == {"FP16"}  # so that half as much crosses the bus
    found = {
        name: {each: count for each, count in record["operators"].items() if "Attention" in each}
        for name, record in records.items()
    }
    assert found == {
        "fast": {"PackedAttention": 2},
        "attention": {},
        "pooled": {"PackedAttention": 1},  # the last layer has but one query of each sequence
        "rows": {"PackedMultiHeadAttention": 2},
        "insight": {},
        "stream": {"PackedAttention": 2},
    }


@pytest.mark.parametrize(
    "change",
    [
        {"causal": True},
        {"mask_input": True},
        {"local_window": 4, "global_every": 2},
        {"relative_buckets": 8, "relative_distance": 6},
        {"disentangled": Disentangled(terms=("c2p",), span=4)},
        {"head_width": 12},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_attention_stays_padded_in_16_bits(change: dict[str, Any]) -> None:
    assert packs(VECTORS, "fp16")
    assert not packs(VECTORS, "bf16")
    assert not packs(replace(VECTORS, **change), "fp16")
    assert packs(replace(VECTORS, **change), "fp32")
