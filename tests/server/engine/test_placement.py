"""What onnxruntime may leave to the CPU: shape arithmetic, whatever the operator, and nothing else.

The nodes of `RECORDED` were left to the CPU on an H100. Those of `UNSEEN` were by onnxruntime 1.31.1's CUDA
provider, opened with libraries of CUDA's names that compute nothing: no card has confirmed them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.parser import parse_model
from tests.encoders import BERT, seeded

from polyhead_export.graphs import build_graph
from polyhead_export.kinds import KINDS
from polyhead_model import Classifier, ContactHead, Dense, EncoderConfig, Splade, TokenVectors
from polyhead_server.engine.dataflow import Node, shape_nodes
from polyhead_server.engine.device import CPU, CUDA
from polyhead_server.engine.session import slow_on_cpu

RECORDED = {
    "model": {"Concat": 1, "Squeeze": 1},
    "attention": {"Concat": 1, "Squeeze": 1},
    "rows": {"Concat": 3, "Squeeze": 1},
    "insight": {
        "Concat": 7,
        "Min": 1,
        "Reshape": 2,
        "Squeeze": 1,
        "Sub": 1,
    },  # and a Concat more for each layer
    "stream": {"Add": 2, "Concat": 9, "Mul": 8, "Reshape": 2, "Squeeze": 4, "Sub": 2},
}
TOKENS = replace(BERT, d_model=64, feed_forward=96, vocabulary=50, positions=128)
CONTACTS = ContactHead(weights=(0.1,) * 4, bias=0.1, end_id=2)
LATE = TokenVectors(dense=(Dense(width=16, bias=False),), skipped_ids=(4, 5), expansion_id=6)
SEQUENCES = Classifier(labels=("a", "b", "c"), pooling="cls", dense=(Dense(width=64, activation="tanh"),))
UNSEEN: dict[str, tuple[str, EncoderConfig, dict[str, int]]] = {
    "contacts": (
        "contacts",
        replace(TOKENS, types=0, embedding_norm=False, rotary_base=1e4, contacts=CONTACTS),
        {"Concat": 3, "Squeeze": 2},
    ),
    "words": ("sparse", replace(TOKENS, splade=Splade()), {"Concat": 1, "Squeeze": 1}),
    "vectors of tokens": (
        "fast",
        replace(TOKENS, token_vectors=LATE),
        {"Add": 1, "Concat": 2, "Squeeze": 1},
    ),
    "late interaction": (
        "maxsim",
        replace(TOKENS, token_vectors=LATE),
        {"Add": 1, "Concat": 2, "Squeeze": 2},
    ),
    "labels": ("pooled", replace(TOKENS, classifier=SEQUENCES), {"Concat": 2, "Squeeze": 2}),
    "labels of tokens": (
        "fast",
        replace(TOKENS, classifier=Classifier(labels=("a", "b", "c"), pooling=None)),
        {"Concat": 2, "Squeeze": 1},
    ),
}
READ_ON_CPU = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
}
"""Which inputs CUDA's kernels of these operators read on the CPU."""
HEAVY = {"MatMul", "Gemm", "Softmax", "LayerNormalization", "MultiHeadAttention", "Einsum", "Gelu", "Erf"}


class Recorded:
    """A session that says of these nodes that they are on the CPU, and that one more is on the GPU."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = [SimpleNamespace(name=name, op_type=operator) for name, operator in nodes]

    def get_provider_graph_assignment_info(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(ep_name=CPU, get_nodes=lambda: self._nodes),
            SimpleNamespace(ep_name=CUDA, get_nodes=lambda: [SimpleNamespace(name="m", op_type="MatMul")]),
        ]


def judged(text: str) -> set[str]:
    """The nodes of a graph that compute shapes; each has its output's name."""
    model = parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    for node in model.graph.node:
        node.name = node.output[0]
    return {name for name, _ in shape_nodes(model)}


def test_what_follows_from_shapes_and_constants_is_shape_arithmetic_whatever_its_operator() -> None:
    shapes = judged(
        """g (float[B, T] x, int64[B] lengths) => (float[B, T] y) <int64[1] one = {1}> {
            s = Shape(x)
            half = Constant<value = float {0.5}>()
            f = Cast<to = 1>(s)
            m = Mul(f, half)
            t = Softmax(m)
            i = Cast<to = 7>(t)
            c = Concat<axis = 0>(i, one)
            found = NonZero(x)
            many = Shape(found)
            twice = Add(many, many)
            longest = ReduceMax(lengths)
            mixed = Add(longest, one)
            y = Mul(x, half)
        }""",
    )

    assert shapes == {"s", "half", "f", "m", "t", "i", "c", "many", "twice"}


def test_what_has_a_graph_of_its_own_is_no_shape_arithmetic() -> None:
    shapes = judged(
        """g (float[B, T] x) => (float[4] y) {
            large = Constant<value_float = 0.5>()
            yes = Constant<value = bool {1}>()
            y = If(yes) <
                then_branch = one () => (float[4] a) { a = Identity(large) },
                else_branch = two () => (float[4] b) { b = Identity(large) }
            >
        }""",
    )

    assert "y" not in shapes


def test_a_weight_is_no_constant_of_shapes() -> None:
    weight = onnx.helper.make_tensor("weight", onnx.TensorProto.FLOAT, [64, 64], [0.0] * 4096)
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[B] x) => (float[64, 64] y) { y = Neg(weight) }'
    )
    model.graph.node[0].name = "n"
    model.graph.initializer.append(weight)

    assert shape_nodes(model) == set()


@pytest.mark.parametrize(
    "planted", ["p = Softmax(x)", "p = MatMul(x, x)", "p = Cast<to = 11>(x)", "p = Gather(x, one)"]
)
def test_work_on_the_batch_that_is_left_to_the_cpu_is_named(tmp_path: Path, planted: str) -> None:
    file = tmp_path / "model.onnx"
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 2] x) => (float[2, 2] y) <int64[1] one = {1}> '
        f"{{ s = Shape(x) {planted} y = Add(x, x) }}"
    )
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, file)
    operator = model.graph.node[1].op_type

    left = Recorded(("s", "Shape"), ("p", operator))
    assert slow_on_cpu(file, left) == {operator: 1}
    assert slow_on_cpu(file, Recorded(("s", "Shape"))) == {}


def test_a_node_that_the_file_does_not_have_is_work_but_for_a_gather_of_a_shape(
    repository: Path,
) -> None:
    file = repository / "tiny" / "1" / "model.onnx"

    left = Recorded(("Gather", "Gather"), ("Transpose", "Transpose"), ("", "Concat"), ("Softmax", "Softmax"))
    assert slow_on_cpu(file, left) == {"Concat": 1, "Softmax": 1, "Transpose": 1}


def graphs(*folders: Path) -> Iterator[Path]:
    """Every graph of some repositories."""
    for folder in folders:
        yield from sorted(folder.rglob("*.onnx"))


def test_what_was_left_to_the_cpu_on_a_card_is_shape_arithmetic(probed_models: Path) -> None:
    for kind, recorded in RECORDED.items():
        (file,) = (file for file in graphs(probed_models) if file.stem == kind)
        left = Counter(operator for _, operator in kept(file))

        assert left >= Counter(recorded), kind


@pytest.mark.parametrize(
    "models",
    [
        *("repository", "probed_models", "scorers", "splade"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("architectures", "tagger")),
    ],
)
def test_no_graph_needs_more_than_shapes_on_the_cpu(models: str, request: pytest.FixtureRequest) -> None:
    """The rule's own verdict: no card has confirmed it for contacts, sparse, late interaction and heads."""
    for file in graphs(request.getfixturevalue(models)):
        shapes = kept(file)
        assert shapes, file
        assert not HEAVY & {operator for _, operator in shapes}, file
        assert slow_on_cpu(file, Recorded(*shapes)) == {}
        work = next(
            (node.name, node.op_type)
            for node in onnx.load(file, load_external_data=False).graph.node
            if node.op_type in HEAVY
        )
        assert slow_on_cpu(file, Recorded(*shapes, work)) == {work[1]: 1}


@pytest.mark.parametrize("what", [pytest.param(each, marks=pytest.mark.slow) for each in UNSEEN])
def test_what_no_card_has_left_to_the_cpu_is_shape_arithmetic_by_the_rule(what: str, tmp_path: Path) -> None:
    kind, config, recorded = UNSEEN[what]
    file = tmp_path / "graph.onnx"
    ir.save(build_graph(seeded(config, 1), KINDS[kind](), pack=True), file)
    shapes = shape_nodes(onnx.load(file))
    left = kept(file)

    assert left <= shapes
    assert Counter(operator for _, operator in left) >= Counter(recorded)
    assert slow_on_cpu(file, Recorded(*left)) == {}


def kept(file: Path) -> set[Node]:
    """The nodes that onnxruntime keeps on the CPU beside a GPU, of those that are left of folding constants.

    These are the nodes behind a Shape whose other inputs are small constants, inputs of the graph, or kept
    there as well, unless the GPU's own kernel reads that input on the CPU (fallback_cpu_capability.cc).
    """
    graph = onnx.load(file, load_external_data=False).graph
    constants = {node.output[0] for node in graph.node if node.op_type == "Constant"}
    anywhere = constants | {each.name for each in graph.input} | {each.name for each in graph.initializer}
    on_cpu: set[str] = set()
    nodes: set[Node] = set()
    for node in graph.node:
        if node.op_type == "Shape":
            on_cpu.update(node.output)
            continue
        own = READ_ON_CPU.get(node.op_type, ())
        read = [(place, name) for place, name in enumerate(node.input) if name and name not in anywhere]
        if read and all(name in on_cpu and place not in own for place, name in read):
            on_cpu.update(node.output)
            nodes.add((node.name, node.op_type))
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(file, options, providers=[CPU])
    return nodes & {
        (node.name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    }
