"""Which operators of a graph are where."""

from polyhead_server.engine.devices import CPU, CUDA
from polyhead_server.engine.placement import slow_on_cpu, spell


def test_large_work_on_the_cpu_is_named_and_shapes_are_not() -> None:
    operators = {CUDA: {"MatMul": 70}, CPU: {"Shape": 4, "MatMul": 2, "MultiHeadAttention": 1}}

    assert slow_on_cpu(operators, CUDA) == {"MatMul": 2, "MultiHeadAttention": 1}
    assert slow_on_cpu({CPU: {"MatMul": 72}}, CPU) == {}


def test_what_is_not_known_to_be_about_shapes_is_large_work() -> None:
    work = {"Add": 1, "Einsum": 1, "Erf": 2, "QAttention": 1, "Tanh": 1, "Where": 1}

    assert slow_on_cpu({CUDA: {"MatMul": 70}, CPU: work | {"Range": 1, "Squeeze": 4}}, CUDA) == work


def test_operators_in_words() -> None:
    assert spell({"MatMul": 2, "Softmax": 1}) == "2 MatMul, 1 Softmax"
