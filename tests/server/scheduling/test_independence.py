"""A request gets the same bits alone and in any company: on the real engines, in fp32 and int8.

`tests/server/serving/test_drift.py` measures all kinds of graphs. 16 bits are for GPUs; the export measures
them, by emulation.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.server.conftest import running
from tests.server.graphs import OpenGraph
from tests.servers import quick_settings

from polyhead_server.repository.manifest import GraphName
from polyhead_server.scheduling import Work


class RandomGraph(OpenGraph):
    """A graph, and random requests for it."""

    def __init__(self, repository: Path, family: str, graph: GraphName, device: str) -> None:
        super().__init__(repository, family, graph, device)
        self.random = np.random.default_rng(3)

    def draw(
        self,
        batch: int,
        tokens: int,
        hostile: float | None = None,
        lengths: np.ndarray | None = None,
    ) -> Work:
        """A random request, its sequences of different lengths; or one full of a hostile value."""
        feeds = self.signature.example(batch, tokens)
        if lengths is None:
            lengths = self.random.integers(1, tokens + 1, batch)
            lengths[0] = tokens
        feeds["lengths"] = lengths.astype(np.int32)
        if "x" in feeds:
            feeds["x"] = self.random.standard_normal(feeds["x"].shape).astype(np.float32)
            if hostile is not None:
                feeds["x"][:] = hostile
        else:
            feeds["input_ids"] = self.random.integers(0, 32, (batch, tokens))
        if "mask" in feeds:
            feeds["mask"] = self.random.random((batch, tokens, tokens)) < 0.7
        return self.work(feeds)


@pytest.fixture
def families(request: pytest.FixtureRequest, family: str) -> Path:
    """The repository that holds the family of a test."""
    folder: Path = request.getfixturevalue("repository" if family.startswith("tiny") else "int8_models")
    return folder


FP32: list[tuple[str, GraphName]] = [
    ("tiny", "fast"),
    ("tiny", "attention"),
    ("tiny-tokens", "fast"),
    ("tiny-tokens", "attention"),
    ("tiny-masked", "fast"),
    ("tiny-masked", "attention"),
]
INT8: list[tuple[str, GraphName]] = [
    ("vectors", "fast"),
    ("vectors", "attention"),
    ("tokens", "fast"),
]


def graphs(*, tokens: bool = True) -> list[Any]:
    """The graphs to test, with or without those of token ids. To export those in int8 is slow."""
    every = [*FP32, *(pytest.param(*graph, marks=pytest.mark.slow) for graph in INT8)]
    return [graph for graph in every if tokens or "tokens" not in str(graph)]


@pytest.mark.parametrize(("family", "name"), graphs())
def test_the_same_request_alone_and_at_every_place_of_a_batch(
    families: Path, family: str, name: GraphName, device: str
) -> None:
    graph = RandomGraph(families, family, name, device)
    for batch, tokens in ((1, 7), (3, 13), (2, 32)):
        one = graph.draw(batch, tokens)
        (alone,) = graph.run([one]).outputs
        mates = [graph.draw(*size) for size in ((1, 3), (4, 13), (1, 32), (2, 20))]
        for place in range(len(mates) + 1):
            together = graph.run([*mates[:place], one, *mates[place:]]).outputs[place]
            assert list(together) == list(alone)
            for output, value in alone.items():
                np.testing.assert_array_equal(together[output], value)


requests = st.tuples(st.integers(1, 32), st.lists(st.integers(0, 32), min_size=1, max_size=4))
"""T, and lengths of at most that."""


@pytest.fixture(scope="module")
def packed(repository: Path, int8_models: Path, device: str) -> list[RandomGraph]:
    """Graphs that compute the tokens that exist."""
    names: list[tuple[Path, str, GraphName]] = [
        (repository, "tiny", "fast"),
        (int8_models, "vectors", "attention"),
        (int8_models, "tokens", "fast"),
    ]
    graphs = [RandomGraph(*name, device) for name in names]
    assert all(graph.signature.packed for graph in graphs)
    return graphs


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 2), ragged=st.lists(requests, min_size=2, max_size=5))
def test_ragged_batches_change_no_answer(
    packed: list[RandomGraph], which: int, ragged: list[tuple[int, list[int]]]
) -> None:
    """Lengths of 0 and 1 among others, and requests longer than any of their sequences."""
    graph = packed[which]
    works = [
        graph.draw(len(lengths), tokens, lengths=np.minimum(lengths, tokens)) for tokens, lengths in ragged
    ]
    result = graph.run(works)

    assert result.execution.tokens == sum(int(work.feeds["lengths"].sum()) for work in works)
    assert result.execution.padded_tokens == sum(
        int(np.maximum(work.feeds["lengths"], 1).sum()) for work in works
    )
    for work, together in zip(works, result.outputs, strict=True):
        (alone,) = graph.run([work]).outputs
        for output, value in alone.items():
            np.testing.assert_array_equal(together[output], value)


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize(("family", "name"), graphs(tokens=False))
def test_hostile_neighbours_change_nothing(
    families: Path, family: str, name: GraphName, hostile: float, device: str
) -> None:
    graph = RandomGraph(families, family, name, device)
    one = graph.draw(2, 9)
    (alone,) = graph.run([one]).outputs
    for size in ((1, 9), (1, 4), (3, 17)):
        for place in (0, 1):
            works = [graph.draw(*size, hostile=hostile)]
            works.insert(place, one)
            together = graph.run(works).outputs[place]
            for output, value in alone.items():
                np.testing.assert_array_equal(together[output], value)


@pytest.mark.parametrize("lanes", [{"threads": 1}, {"threads": 2, "lanes": 1}, {"threads": 2, "lanes": 2}])
@pytest.mark.parametrize("family", ["tiny", pytest.param("vectors", marks=pytest.mark.slow)])
def test_a_reply_is_the_same_in_company_however_the_server_runs(
    families: Path, family: str, lanes: dict[str, int], device: str
) -> None:
    """Many requests at once, quiet and loud, joined or side by side: each gets what it gets alone."""
    random = np.random.default_rng(6)
    requests = [
        {
            "x": (scale * random.standard_normal((batch, tokens, 16 if family == "tiny" else 12))).astype(
                np.float32
            ),
            "lengths": random.integers(1, tokens + 1, batch).astype(np.int32),
        }
        for batch, tokens, scale in ((1, 7, 1), (2, 30, 1e3), (1, 19, 1e-3), (3, 4, 1), (1, 40, 1e6)) * 8
    ]
    with running(quick_settings(families, device=device, **lanes)) as server, ThreadPoolExecutor(16) as pool:
        alone = [server.infer(family, request)["output"] for request in requests]
        together = list(pool.map(lambda request: server.infer(family, request)["output"], requests))

    for mine, its in zip(together, alone, strict=True):
        np.testing.assert_array_equal(mine, its)
