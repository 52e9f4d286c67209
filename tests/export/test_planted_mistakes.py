"""What the comparison with PyTorch makes of mistakes, each planted into a graph that it accepts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from tests.encoders import BERT, draw_heads_that_prefer_some_keys, seeded
from torch import Tensor

from polyhead_export.comparison import check_parity
from polyhead_export.errors import ParityError
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.attention import AttentionGraph
from polyhead_export.kinds.insight import InsightGraph
from polyhead_export.kinds.sparse import SparseGraph
from polyhead_export.parity import Reference
from polyhead_export.signature import GraphKind
from polyhead_export.weights import names_of, share_weights
from polyhead_model import Encoder, Splade

Weights = NDArray[np.float32]
Plant = Callable[[ir.Model], None]

HEADS, GROUPS, WIDTH = 4, 2, 16
CONFIG = replace(
    BERT,
    d_model=HEADS * WIDTH,
    heads=HEADS,
    kv_heads=GROUPS,
    types=0,
    embedding_norm=False,
    pooling="mean",
    splade=Splade(),
)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """An encoder whose scores have the scale of trained ones, where heads prefer some keys."""

    def change(name: str, parameter: Tensor) -> None:
        draw_heads_that_prefer_some_keys(name, parameter)
        if name.endswith("bias"):
            parameter.normal_(std=0.1)

    return seeded(CONFIG, 61, change=change)


@pytest.fixture(scope="module")
def reference(encoder: Encoder) -> Reference:
    return Reference(encoder)


@pytest.fixture(scope="module")
def graphs(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("graphs")
    kinds = (AttentionGraph(), InsightGraph(), SparseGraph())
    models = {kind.file: build_graph(encoder, kind, pack=True) for kind in kinds}
    share_weights(models.values(), folder, names_of(encoder))
    for file, model in models.items():
        ir.save(model, folder / file)
    return {file: folder / file for file in models}


def change(name: str, to: Callable[[Weights], NDArray[np.generic]]) -> Plant:
    """Change one of the encoder's weights, as the graph has it: matrices are transposed."""

    def plant(model: ir.Model) -> None:
        value: Any = model.graph.initializers[name]
        value.const_value = ir.tensor(to(value.const_value.numpy().copy()).astype(np.float32), name=name)

    return plant


def take(name: str, other: str) -> Plant:
    """Put a weight in the place of another."""

    def plant(model: ir.Model) -> None:
        ir.convenience.replace_all_uses_with(model.graph.initializers[name], model.graph.initializers[other])

    return plant


def set_attribute(operator: str, place: int, name: str, to: ir.Attr) -> Plant:
    def plant(model: ir.Model) -> None:
        node = [node for node in model.graph if node.op_type == operator][place]
        node.attributes[name] = to

    return plant


def after(find: Callable[[ir.Model], ir.Value], *steps: tuple[str, Any]) -> Plant:
    """Put operators behind a value: each takes the result before it and, unless it is a cast, a constant."""

    def plant(model: ir.Model) -> None:
        value = find(model)
        readers = list(value.uses())
        made: ir.Value = value
        nodes: list[ir.Node] = []
        for place, (operator, operand) in enumerate(steps):
            if operator == "Cast":
                node = ir.node("Cast", [made], {"to": operand})
            else:
                constant = ir.node(
                    "Constant", [], {"value": ir.tensor(np.asarray(operand), name=f"planted_{place}")}
                )
                nodes.append(constant)
                node = ir.node(operator, [made, constant.outputs[0]])
            nodes.append(node)
            made = node.outputs[0]
        for number, node in enumerate(nodes):
            node.outputs[0].name = f"planted_value_{number}"
        for reader, index in readers:
            reader.replace_input_with(index, made)
        producer = value.producer()
        if producer is None:
            model.graph.insert_before(model.graph[0], nodes)
        else:
            model.graph.insert_after(producer, nodes)
        for place, output in enumerate(model.graph.outputs):
            if output is value:
                value.name, made.name = f"{value.name}_planted", value.name
                made.shape, made.type = value.shape, value.type
                model.graph.outputs[place] = made

    return plant


def given(name: str) -> Callable[[ir.Model], ir.Value]:
    return lambda model: next(value for value in model.graph.inputs if value.name == name)


def made_by(operator: str, place: int) -> Callable[[ir.Model], ir.Value]:
    return lambda model: [node for node in model.graph if node.op_type == operator][place].outputs[0]


def output(name: str) -> Callable[[ir.Model], ir.Value]:
    return lambda model: next(value for value in model.graph.outputs if value.name == name)


def in_columns(head: int, factor: float) -> Callable[[Weights], Weights]:
    def scale(matrix: Weights) -> Weights:
        matrix[..., head * WIDTH : (head + 1) * WIDTH] *= factor
        return matrix

    return scale


def rounded_to(bits: int) -> Callable[[Weights], Weights]:
    """Keep so many bits of each number's fraction."""

    def rounded(matrix: Weights) -> Weights:
        mantissa, exponent = np.frexp(matrix)
        return np.ldexp(np.rint(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)

    return rounded


def one_row(matrix: Weights) -> Weights:
    matrix[1, ::2] += 1e-4  # not all of it, which a norm takes away
    return matrix


def in_groups(place: int, to: list[int]) -> Plant:
    """Have query heads attend with other heads of keys (even places) or values."""

    def plant(model: ir.Model) -> None:
        groups = [head * GROUPS // HEADS for head in range(HEADS)]
        nodes = [
            node
            for node in model.graph
            if node.op_type == "Gather"
            and (places := node.inputs[1]) is not None
            and (numbers := ir.convenience.get_const_tensor(places)) is not None
            and numbers.numpy().tolist() == groups
        ]
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array(to), name="planted")})
        constant.outputs[0].name = "planted_groups"
        model.graph.insert_before(nodes[place], constant)
        nodes[place].replace_input_with(1, constant.outputs[0])

    return plant


def both(*plants: Plant) -> Plant:
    def plant(model: ir.Model) -> None:
        for each in plants:
            each(model)

    return plant


def scaled_scores(head: int, factor: float) -> Plant:
    """Scale the queries of a head in the first layer."""
    return both(
        change("layers.0.attention.w_q.weight.T", in_columns(head, factor)),
        change("layers.0.attention.w_q.bias", in_columns(head, factor)),
    )


DISTANCE = 7
"""The column of `head_scores`."""

MISTAKES: dict[str, tuple[GraphKind, Plant]] = {
    "GELU by tanh": (
        AttentionGraph(),
        set_attribute("Gelu", 0, "approximate", ir.AttrString("approximate", "tanh")),
    ),
    "another epsilon in one norm": (
        AttentionGraph(),
        set_attribute("LayerNormalization", 1, "epsilon", ir.AttrFloat32("epsilon", 1e-5)),
    ),
    "one head's scale + 1e-5": (AttentionGraph(), scaled_scores(1, 1 + 1e-5)),
    "a token less": (AttentionGraph(), after(given("lengths"), ("Sub", np.int32(1)))),
    "a token more": (AttentionGraph(), after(given("lengths"), ("Add", np.int32(1)))),
    "tokens in the place of their neighbours": (
        AttentionGraph(),
        after(made_by("CumSum", 0), ("Sub", np.int64(1)), ("Max", np.int64(1))),
    ),
    "a bias is missing": (AttentionGraph(), change("layers.1.attention.w_v.bias", np.zeros_like)),
    "w_o of another layer": (
        AttentionGraph(),
        take("layers.0.attention.w_o.weight.T", "layers.1.attention.w_o.weight.T"),
    ),
    "a bias of another layer": (
        AttentionGraph(),
        take("layers.1.feed_forward.down.bias", "layers.0.feed_forward.down.bias"),
    ),
    "a norm of another layer": (
        AttentionGraph(),
        take("layers.1.attention_norm.bias", "layers.0.attention_norm.bias"),
    ),
    "softmax in 16 bits in one layer": (
        AttentionGraph(),
        after(made_by("Softmax", 0), ("Cast", ir.DataType.FLOAT16), ("Cast", ir.DataType.FLOAT)),
    ),
    "one matrix in tf32": (AttentionGraph(), change("layers.0.attention.w_o.weight.T", rounded_to(10))),
    "one matrix in 16 bits": (
        AttentionGraph(),
        change("layers.0.feed_forward.up.weight.T", lambda each: each.astype(np.float16)),
    ),
    "heads in another order": (
        AttentionGraph(),
        change("layers.0.attention.w_v.weight.T", lambda each: np.roll(each, WIDTH, axis=1)),
    ),
    "keys of another group": (AttentionGraph(), in_groups(0, [0, 1, 0, 1])),
    "a head's values are those of another group": (AttentionGraph(), in_groups(3, [0, 0, 1, 0])),
    "one position + 1e-4": (AttentionGraph(), change("embeddings.positions.weight", one_row)),
    "norm maps + 1e-5": (AttentionGraph(), change("norm_maps.0", lambda each: each * np.float32(1 + 1e-5))),
    "distance + 1e-5": (
        InsightGraph(),
        after(
            output("head_scores"),
            ("Mul", np.where(np.arange(10) == DISTANCE, 1 + 1e-5, 1).astype(np.float32)),
        ),
    ),
    "pictures are two digits lighter": (
        InsightGraph(),
        after(
            output("thumbnails"),
            ("Cast", ir.DataType.INT32),
            ("Add", np.int32(2)),
            ("Cast", ir.DataType.UINT8),
        ),
    ),
    "another key is the strongest": (
        InsightGraph(),
        after(output("top_keys"), ("Sub", np.int32(1)), ("Max", np.int32(0))),
    ),
    "another word weighs most": (
        SparseGraph(),
        after(output("sparse_indices"), ("Sub", np.int32(1)), ("Max", np.int32(0))),
    ),
}

EQUIVALENT: dict[str, tuple[GraphKind, Plant]] = {
    "nothing": (AttentionGraph(), lambda _: None),
    "no key bias, which softmax does not see": (
        AttentionGraph(),
        change("layers.0.attention.w_k.bias", np.zeros_like),
    ),
    "the insight graph": (InsightGraph(), lambda _: None),
}


def planted(kind: GraphKind, plant: Plant, graphs: dict[str, Path], folder: Path) -> Path:
    model = ir.load(graphs[kind.file])
    plant(model)
    ir.save(model, folder / kind.file, external_data="planted.bin")
    return folder / kind.file


IN_ROUNDING = ("softmax in 16 bits in one layer", "one matrix in tf32", "one matrix in 16 bits")
"""Mistakes that a kernel could make in a graph that is right."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(
    mistake: str, reference: Reference, graphs: dict[str, Path], tmp_path: Path
) -> None:
    kind, plant = MISTAKES[mistake]
    file = planted(kind, plant, graphs, tmp_path)

    # One indexes a token beyond the last.
    wrong, outside = (
        ".* must be what PyTorch gives where both compute",
        "every node must index within its inputs",
    )
    found = f"{kind.file}: ({wrong}|{outside})"
    with pytest.raises(ParityError, match=found):
        check_parity(reference.compare(file, kind, ir.load(file)), kind.file)


@pytest.mark.parametrize("mistake", IN_ROUNDING)
def test_rounding_that_is_too_coarse_is_found(
    mistake: str, reference: Reference, graphs: dict[str, Path], tmp_path: Path
) -> None:
    kind, plant = MISTAKES[mistake]
    compared = reference.compare(planted(kind, plant, graphs, tmp_path), kind, None)

    with pytest.raises(ParityError, match=f"{kind.file}: .* must be about as close to float64 as PyTorch"):
        check_parity(compared, kind.file)


@pytest.mark.parametrize("change", EQUIVALENT)
def test_the_same_computation_is_accepted(
    change: str, reference: Reference, graphs: dict[str, Path], tmp_path: Path
) -> None:
    kind, plant = EQUIVALENT[change]
    file = planted(kind, plant, graphs, tmp_path)

    check_parity(reference.compare(file, kind, ir.load(file)), kind.file)
