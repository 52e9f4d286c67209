"""Requests are put together and taken apart again."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from tests.server.scheduling.conftest import graph_of

from polyhead_server.engine.engine import Arrays
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling import Planner, Size, Work
from polyhead_server.scheduling.batch import JointWork, measure
from polyhead_server.scheduling.execution import execute

with_lengths = partial(
    graph_of,
    {"x": "BTD", "mask": "BTT"},
    {"output": "BTD", "attention.0": "BHTT", "pooled": "BD"},
    lengths={"lengths": "T"},
    sizes={"D": 3, "H": 5},
)
GRAPH = with_lengths()
RANDOM = np.random.default_rng(0)


def joint(works: Sequence[Work], graph: Signature) -> JointWork:
    size = Planner(packed=graph.packed).joint([work.size for work in works])
    return JointWork(works, graph, size)


def work(batch: int, tokens: int, outputs: tuple[str, ...] = ("output",)) -> Work:
    feeds = {
        "x": RANDOM.standard_normal((batch, tokens, 3), np.float32),
        "mask": np.ones((batch, tokens, tokens), np.bool_),
        "lengths": np.full(batch, tokens, np.int32),
    }
    size, real_tokens = measure(feeds, GRAPH)
    return Work(feeds=feeds, outputs=outputs, size=size, real_tokens=real_tokens)


class Echo:
    """Gives what it got."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        self.asked = outputs
        return feeds

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_one_request_is_passed_on_untouched() -> None:
    one, engine = work(2, 3), Echo()

    assert execute(engine, joint([one], GRAPH)).outputs[0] is one.feeds
    assert engine.asked is one.outputs


def test_shorter_ones_are_padded_with_zeros() -> None:
    works = [work(1, 2), work(2, 4), work(1, 1)]
    feeds = joint(works, GRAPH).feeds()

    assert feeds["x"].shape == (4, 4, 3)
    assert feeds["mask"].shape == (4, 4, 4)
    assert feeds["lengths"].tolist() == [2, 4, 4, 1]
    np.testing.assert_array_equal(feeds["x"][0, :2], works[0].feeds["x"][0])
    np.testing.assert_array_equal(feeds["x"][1:3], works[1].feeds["x"])
    assert not feeds["x"][0, 2:].any()
    assert not feeds["x"][3, 1:].any()
    assert feeds["mask"][0].sum() == 4
    assert feeds["x"].dtype == np.float32
    assert feeds["mask"].dtype == np.bool_
    assert joint(works, GRAPH).computed_tokens() == 16
    assert sum(one.real_tokens for one in works) == 11


def test_everyone_gets_their_own_outputs_in_their_own_shape() -> None:
    works = [
        work(1, 2, ("output", "attention.0")),
        work(2, 4, ("pooled",)),
        work(1, 1, ("attention.0", "pooled")),
    ]
    assert joint(works, GRAPH).outputs == ["output", "attention.0", "pooled"]
    outputs = {
        "output": RANDOM.standard_normal((4, 4, 3)),
        "attention.0": RANDOM.standard_normal((4, 5, 4, 4)),
        "pooled": RANDOM.standard_normal((4, 3)),
    }
    first, second, third = joint(works, GRAPH).split(outputs)

    assert list(first) == ["output", "attention.0"]
    assert list(second) == ["pooled"]
    assert list(third) == ["attention.0", "pooled"]
    np.testing.assert_array_equal(first["output"], outputs["output"][:1, :2])
    np.testing.assert_array_equal(first["attention.0"], outputs["attention.0"][:1, :, :2, :2])
    np.testing.assert_array_equal(second["pooled"], outputs["pooled"][1:3])
    np.testing.assert_array_equal(third["attention.0"], outputs["attention.0"][3:, :, :1, :1])
    assert all(value.base is not None for part in (first, second, third) for value in part.values())


def test_a_request_is_as_large_as_its_padding_unless_that_is_not_computed() -> None:
    feeds = {"x": np.zeros((3, 5, 2)), "lengths": np.array([5, 0, 2])}

    assert measure(feeds, GRAPH) == (Size(3, 5, 15), 7)
    # An empty sequence is computed as one token.
    assert measure(feeds, with_lengths(packed=True)) == (Size(3, 5, 8), 7)


def test_two_sequences_have_the_lengths_of_both() -> None:
    lengths = {"lengths": "T", "memory_lengths": "S"}
    padded, packed = (
        graph_of({"x": "BT", "memory": "BS"}, {}, lengths=lengths, packed=packed) for packed in (False, True)
    )
    works = []
    for tokens, memory in ((3, 4), (2, 9)):
        feeds = {
            "x": np.zeros((2, tokens)),
            "memory": np.zeros((2, memory)),
            "lengths": np.array([tokens, 1]),
            "memory_lengths": np.array([memory, 2]),
        }
        assert measure(feeds, padded) == (Size.full(2, memory), tokens + memory + 3)
        size, real_tokens = measure(feeds, packed)
        assert size == Size(2, memory, tokens + memory + 3)
        works.append(Work(feeds=feeds, outputs=[], size=size, real_tokens=real_tokens))

    assert joint(works, padded).computed_tokens() == 4 * (3 + 9)
    assert joint(works, packed).computed_tokens() == 10 + 14


def test_without_lengths_all_tokens_count() -> None:
    assert measure({"x": np.zeros((2, 3))}, graph_of({"x": "BT"}, {})) == (Size(2, 3, 6), 6)
