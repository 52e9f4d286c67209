"""Rewrite a traced graph to multiply tokens by weights in 8 bits, for CPUs.

x W ≈ s · c · (q − z) Ŵ, where a token's vector x becomes unsigned integers q = round(x / s) + z, and a column
of W becomes signed integers Ŵ = round(W / c):

* Each token has a scale s of its own, so that it depends on no other token. With one scale for a whole batch,
  as in onnxruntime's `DynamicQuantizeMatMul`, a loud neighbour would take precision from every other request.
* Each column has a scale c such that no CPU saturates. x86 without VNNI adds two neighbouring products in 16
  bits, so 255 · (Ŵ + Ŵ′) must stay below 32,768 for two weights of one sign.
* What an activation function bounds from below needs few steps under zero, and gets more above it.

Attention, norms, pooling and everything after it stay in fp32. Large tables of embeddings are stored in 8
bits, with a scale for each row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import nn

from polyhead_export.fusion import CONTRIB
from polyhead_export.operators import check_operators, count_operators
from polyhead_export.weights import fingerprint
from polyhead_model import Encoder

Array = NDArray[Any]

LARGE_TABLE = 2**18
"""Bytes from which on a table of embeddings is stored in 8 bits."""

_STEPS = 255
"""Of an unsigned number of 8 bits."""
_WEIGHT_STEPS = 127
_SMALLEST_SCALE = 1e-30
"""The scale of zeros, as in padding: any number above 0."""


class InputRange(NamedTuple):
    """How the vectors that a product reads become unsigned integers."""

    zero: int
    """z, the integer that stands for 0."""
    smallest_scale: float
    signed: bool = True
    """Whether the largest value by magnitude decides the scale, and not the largest value."""


ANY_SIGN = InputRange(128, _SMALLEST_SCALE)
_AFTER_GELU = InputRange(32, 0.1701 / 32, signed=False)
"""GELU is never below −0.17005, neither exact nor by tanh."""
_AFTER: Mapping[str, InputRange] = {
    "Gelu": _AFTER_GELU,
    "Relu": InputRange(0, _SMALLEST_SCALE, signed=False),
}


def make_parts_constant(model: ir.Model) -> None:
    """Make constants of the parts of a constant, and of transposes, in place: products take no others.

    A graph of pooled tokens alone splits the matrix of one W_qkv.

    Args:
        model: A traced graph, before it is quantised.
    """
    for node in list(model.graph):
        constant = _input(node, 0).const_value if node.op_type in {"Split", "Transpose"} else None
        if constant is None:
            continue
        array = constant.numpy()
        if node.op_type == "Transpose":
            parts = [array.transpose(node.attributes["perm"].as_ints())]
        else:
            parts = np.split(array, _ends(node), node.attributes.get_int("axis", 0))
        for output, part in zip(node.outputs, parts, strict=True):
            name, output.name = str(output.name), f"{output.name}_computed"
            made = _initializer(model.graph, name, np.ascontiguousarray(part))
            ir.convenience.replace_all_uses_with(output, made)
    RemoveUnusedNodesPass()(model)


def _ends(node: ir.Node) -> int | list[int]:
    """Return where the parts of a `Split` end, or how many equal ones there are."""
    sizes = None if len(node.inputs) < 2 else ir.convenience.get_const_tensor(_input(node, 1))
    return len(node.outputs) if sizes is None else sizes.numpy().cumsum()[:-1].tolist()


def quantise(model: ir.Model, names: Mapping[str, str]) -> None:
    """Quantise the products and the large tables of a traced fp32 graph, in place.

    The results of `products` and `lookups` keep their names.

    Args:
        model: The graph.
        names: The names of weights by fingerprint, see `polyhead_export.weights.names_of`.
    """
    graph = model.graph
    inputs: dict[ir.Value, tuple[ir.Value, ir.Value, ir.Value]] = {}
    for node in products(model):
        x = _input(node, 0)
        if x not in inputs:
            inputs[x] = _quantised_input(graph, node, x, input_range(x))
        _replace_product(graph, node, inputs[x], names)
    for node in lookups(model):
        _replace_lookup(graph, node, names)
    _sum_before_norms(graph)
    RemoveUnusedNodesPass()(model)
    model.opset_imports.setdefault(CONTRIB, 1)


def check_products(model: ir.Model, encoder: Encoder, file: str) -> None:
    """Check that every linear layer of the encoder's layers is computed in 8 bits.

    Args:
        model: The graph, quantised.
        encoder: What it was traced from.
        file: The graph's file name, for the message.

    Raises:
        ExportError: One is not.
    """
    # A shared layer projects the tokens each time, but the memory only once.
    times = (
        encoder.config.layers if encoder.config.shared_layers and not encoder.config.cross_attention else 1
    )
    linear = times * sum(
        isinstance(part, nn.Linear) and not name.endswith((".w_pk", ".w_pq"))  # of positions alone
        for name, part in encoder.layers.named_modules()
    )
    check_operators(count_operators(model), {"MatMulIntegerToFloat": linear}, file)


def products(model: ir.Model) -> list[ir.Node]:
    """Return the products of the vectors of tokens, [B, T, X], with a constant matrix.

    Those with a matrix of ones are sums (`polyhead_model.sums`), and stay in fp32. So do those of pooled
    vectors, [B, X]: they cost little, and everything passes through them.
    """
    return [
        node
        for node in model.graph
        if node.op_type == "MatMul"
        and _rank(_input(node, 0)) == 3
        and _is_matrix(matrix := _input(node, 1))
        and not (matrix_of(matrix) == 1).all()
    ]


def lookups(model: ir.Model) -> list[ir.Node]:
    """Return the lookups in large tables of embeddings."""
    return [
        node
        for node in model.graph
        if node.op_type == "Gather"
        and node.attributes.get_int("axis", 0) == 0
        and _is_matrix(table := _input(node, 0))
        and matrix_of(table).nbytes >= LARGE_TABLE
    ]


def input_range(x: ir.Value) -> InputRange:
    """Return how a product's input becomes integers, by what has computed it."""
    producer = x.producer()
    return ANY_SIGN if producer is None else _AFTER.get(producer.op_type, ANY_SIGN)


def quantise_columns(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers [K, N] and scales [N], such that no CPU saturates."""
    padded = np.pad(matrix, ((0, len(matrix) % 2), (0, 0)))
    positive, negative = np.maximum(padded, 0), np.maximum(-padded, 0)
    # Two of at most 127 steps together are at most 128 when rounded: 255 · 128 < 32,768.
    largest = np.maximum(
        (positive[::2] + positive[1::2]).max(axis=0), (negative[::2] + negative[1::2]).max(axis=0)
    )
    return _steps(matrix, largest)


def quantise_rows(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers [V, D] and scales [V, 1]."""
    return _steps(table, np.abs(table).max(axis=1, keepdims=True))


def _steps(
    values: NDArray[np.float32], largest: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    scales = np.maximum(largest / np.float32(_WEIGHT_STEPS), np.float32(_SMALLEST_SCALE))
    return np.rint(values / scales).astype(np.int8), scales


def matrix_of(value: ir.Value) -> NDArray[np.float32]:
    """Return the content of a constant."""
    if value.const_value is None:
        raise RuntimeError(f"{value.name!r} has no value")
    matrix: NDArray[np.float32] = value.const_value.numpy()
    return matrix


def _quantised_input(
    graph: ir.Graph, before: ir.Node, x: ir.Value, how: InputRange
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Write q; return it with s and z."""
    tape = ir.tape.Tape()
    zero = _constant(graph, np.uint8(how.zero))
    largest = tape.op(
        "ReduceMax",
        [tape.op("Abs", [x]) if how.signed else x, _constant(graph, np.array([-1]))],
        {"keepdims": 1},
    )
    scale = tape.op(
        "Max",
        [
            tape.op("Mul", [largest, _constant(graph, np.float32(1 / (_STEPS - how.zero)))]),
            _constant(graph, np.float32(how.smallest_scale)),
        ],
    )
    # QuantizeLinear takes a scale for each row only along an axis of fixed size.
    steps = tape.op("Div", [x, scale])
    integers = tape.op("QuantizeLinear", [steps, _constant(graph, np.float32(1)), zero])
    _insert(graph, before, tape.nodes, f"{x.name}_steps")
    return integers, scale, zero


def _replace_product(
    graph: ir.Graph, node: ir.Node, quantised: tuple[ir.Value, ir.Value, ir.Value], names: Mapping[str, str]
) -> None:
    integers, scale, zero = quantised
    weights, column_scales = _weights(graph, _input(node, 1), quantise_columns, names)
    tape = ir.tape.Tape()
    product = tape.op(
        "MatMulIntegerToFloat",
        [integers, weights, _constant(graph, np.float32(1)), column_scales, zero],
        domain=CONTRIB,
    )
    _replace(graph, node, tape, tape.op("Mul", [product, scale]))


def _replace_lookup(graph: ir.Graph, node: ir.Node, names: Mapping[str, str]) -> None:
    integers, scales = _weights(graph, _input(node, 0), quantise_rows, names)
    index = _input(node, 1)
    tape = ir.tape.Tape()
    row = tape.op("Cast", [tape.op("Gather", [integers, index])], {"to": ir.DataType.FLOAT})
    _replace(graph, node, tape, tape.op("Mul", [row, tape.op("Gather", [scales, index])]))


def _sum_before_norms(graph: ir.Graph) -> None:
    """Replace the additions before a layer norm by one `Sum`.

    onnxruntime (1.31) fuses additions and norm into `SkipLayerNormalization`, whose CPU kernel takes several
    times as long as the operators that it replaces. It leaves `Sum` as it is.
    """
    for norm in list(graph):
        if norm.op_type != "LayerNormalization":
            continue
        top = _input(norm, 0).producer()
        if top is not None and top.op_type == "Add":
            tape = ir.tape.Tape()
            _replace(graph, top, tape, tape.op("Sum", list(_summands(top))))


def _summands(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what an addition adds, and the additions that only it reads."""
    for position in range(2):
        value = _input(node, position)
        producer = value.producer()
        if producer is not None and producer.op_type == "Add" and len(value.uses()) == 1:
            yield from _summands(producer)
        else:
            yield value


def _replace(graph: ir.Graph, node: ir.Node, tape: ir.tape.Tape, new: ir.Value) -> None:
    """Replace the result of a node by that of a tape, under the same name."""
    old = node.outputs[0]
    name, new.type, new.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    _insert(graph, node, tape.nodes, f"{name}_int8")
    old.name, new.name = f"{name}_fp32", name
    graph.remove(node, safe=True)


def _insert(graph: ir.Graph, before: ir.Node, nodes: Iterable[ir.Node], stem: str) -> None:
    for number, node in enumerate(nodes):
        node.outputs[0].name = f"{stem}_{number}"
        graph.insert_before(before, node)


def _weights(
    graph: ir.Graph,
    value: ir.Value,
    quantise_matrix: Callable[[NDArray[np.float32]], tuple[Array, Array]],
    names: Mapping[str, str],
) -> tuple[ir.Value, ir.Value]:
    """Add the integers and scales of a matrix to the graph, once."""
    matrix = matrix_of(value)
    name = names.get(fingerprint(matrix), value.name)
    if (integers := graph.initializers.get(f"{name}.int8")) is None:
        arrays = quantise_matrix(matrix)
        for ending, array in zip(("int8", "scale"), arrays, strict=True):
            _initializer(graph, f"{name}.{ending}", array)
        integers = graph.initializers[f"{name}.int8"]
    return integers, graph.initializers[f"{name}.scale"]


def _constant(graph: ir.Graph, content: Any) -> ir.Value:
    """Return a small constant, the same one each time."""
    array = np.asarray(content)
    name = f"int8.{array.dtype}.{'.'.join(map(str, array.reshape(-1).tolist()))}"
    return graph.initializers.get(name) or _initializer(graph, name, array)


def _initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def _input(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    if value is None:
        raise RuntimeError(f"{node.op_type} {node.name!r} must have an input {position}")
    return value


def _is_matrix(value: ir.Value) -> bool:
    constant = value.const_value
    return constant is not None and len(constant.shape) == 2 and constant.dtype == ir.DataType.FLOAT


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)
