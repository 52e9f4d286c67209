"""What of a graph runs where."""

import json
import shutil
from pathlib import Path

import pytest

from polyhead_server.doctor.graphs import attention_of, inspect
from polyhead_server.engine.device import CPU, CUDA
from polyhead_server.engine.devices import on_cpu


@pytest.mark.parametrize(
    ("name", "models"),
    [("tiny", {"tiny", "tiny.attention"}), ("tiny.attention", {"tiny.attention"})],
)
def test_a_family_or_one_graph_of_it(repository: Path, name: str, models: set[str]) -> None:
    assert {graph.model for graph in inspect(repository, name, on_cpu(""))} == models


def test_the_fast_graph_is_fused_and_the_attention_graph_explicit(repository: Path) -> None:
    fast, attention = inspect(repository, "tiny", on_cpu(""))

    assert (fast.attention, fast.attention_operators) == ("fused", {"MultiHeadAttention": 2})
    assert (attention.attention, attention.attention_operators) == ("explicit", {"Softmax": 2})
    for graph in (fast, attention):
        assert (graph.provider, graph.precision, graph.problem) == (CPU, "fp32", None)
        assert sum(graph.operators[CPU].values()) > 10
        # Slower on a CPU than the operators that it fuses.
        assert "SkipLayerNormalization" not in graph.operators[CPU]


def test_an_arbitrary_mask_leaves_the_fast_graph_fused(repository: Path) -> None:
    graphs = inspect(repository, "tiny-masked", on_cpu(""))

    assert [graph.attention for graph in graphs] == ["fused", "explicit"]


def test_operators_of_all_providers_decide() -> None:
    assert attention_of({CUDA: {"Attention": 3, "MatMul": 9}, CPU: {"Shape": 2}}) == (
        "fused",
        {"Attention": 3},
    )
    assert attention_of({CUDA: {"Attention": 3, "Softmax": 1}})[0] == "fused and explicit"
    assert attention_of({CPU: {"Shape": 2}}) == ("none", {})


def test_sixteen_bits_on_the_cpu_are_a_problem(repository: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(repository / "tiny", tmp_path / "tiny") / "1"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"precision": "fp16"}))

    for graph in inspect(tmp_path, None, on_cpu("")):
        assert (graph.provider, graph.precision) == (None, "fp16")
        assert "which runs on CUDA only" in str(graph.problem)


def test_a_file_that_was_changed_is_not_loaded(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "1"
    folder.mkdir(parents=True)
    for file in (repository / "tiny" / "1").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with (folder / "weights.bin").open("r+b") as weights:
        weights.write(b"\xff")

    for graph in inspect(tmp_path, None, on_cpu("")):
        assert graph.provider is None
        assert "weights.bin" in str(graph.problem)
