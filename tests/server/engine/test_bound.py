"""Runs over bound buffers give what plain runs give, at sizes that the device never sees."""

import threading
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import pytest
from tests.server.engine.conftest import ragged

from polyhead_server.engine.bound import BoundRuns
from polyhead_server.engine.memory import Buffer, HostMemory
from polyhead_server.engine.runs import PlainRuns
from polyhead_server.repository import GraphName

if TYPE_CHECKING:
    from tests.server.engine.conftest import Open

# From large to small and back: what an earlier run left in a buffer must not show.
SIZES = [(9, 27), (1, 1), (3, 8), (2, 31), (17, 5), (1, 32), (5, 13)]


class Card(HostMemory):
    """A device that counts what it is asked for, has garbage in its memory, and may run out of it."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.left = 2**40

    def allocate(self, size: int) -> Buffer:
        if size > self.left:
            raise RuntimeError("CUDA failure 2: out of memory ; expr=cudaMalloc")
        self.taken.append(size)
        block = self.allocate_host(size)
        block.fill(0xFF)  # as numbers: NaN, -1, true
        return Buffer(block.ctypes.data, size, block)


@pytest.mark.parametrize("graph", ["fast", "attention"])
@pytest.mark.parametrize("family", ["tiny", "tiny-tokens", "tiny-masked"])
def test_they_give_what_plain_runs_give(open_graph: "Open", family: str, graph: GraphName) -> None:
    session, signature = open_graph(family, graph)
    bound, plain = BoundRuns(session, signature, Card()), PlainRuns(session)
    names = [tensor.name for tensor in signature.manifest.graphs[graph].outputs]

    for seed, (batch, tokens) in enumerate(SIZES):
        feeds = ragged(signature, batch, tokens, seed)
        expected = plain.run(feeds, names, ort.RunOptions())
        values = bound.run(feeds, names, ort.RunOptions())

        assert list(values) == names
        for name in names:
            assert values[name].shape == expected[name].shape
            assert values[name].dtype == expected[name].dtype
            np.testing.assert_allclose(values[name], expected[name], atol=2e-6, err_msg=name)


def test_the_device_computes_the_buckets_size(open_graph: "Open", monkeypatch: pytest.MonkeyPatch) -> None:
    session, signature = open_graph("tiny", "attention")
    bound: list[tuple[int, ...]] = []
    real = ort.IOBinding.bind_input

    def bind(binding: ort.IOBinding, name: str, device: str, index: int, *form: object) -> None:
        bound.append(form[1])  # type: ignore[arg-type]
        real(binding, name, device, index, *form)

    monkeypatch.setattr(ort.IOBinding, "bind_input", bind)
    BoundRuns(session, signature, Card()).run(ragged(signature, 9, 13, 0), ["output"], ort.RunOptions())

    assert bound == [(10, 16, 16), (10,)]


def test_only_outputs_that_are_asked_for_come_back(open_graph: "Open") -> None:
    session, signature = open_graph("tiny", "attention")
    card = Card()
    feeds = ragged(signature, 2, 8, 0)
    values = BoundRuns(session, signature, card).run(feeds, ["attention.1"], ort.RunOptions())

    assert list(values) == ["attention.1"]
    assert card.taken == [feeds["x"].nbytes, feeds["lengths"].nbytes, values["attention.1"].nbytes]


def test_buffers_are_used_again(open_graph: "Open") -> None:
    session, signature = open_graph("tiny", "fast")
    card = Card()
    runs = BoundRuns(session, signature, card)
    for seed in range(3):
        runs.run(ragged(signature, 4, 24, seed), ["output"], ort.RunOptions())
        runs.run(ragged(signature, 2, 9, seed), ["output"], ort.RunOptions())
    assert len(card.taken) == 3

    runs.run(ragged(signature, 4, 25, 0), ["output"], ort.RunOptions())

    assert len(card.taken) == 5  # lengths are as many as before


def test_what_a_huge_run_took_is_given_back(open_graph: "Open", monkeypatch: pytest.MonkeyPatch) -> None:
    session, signature = open_graph("tiny", "fast")
    card = Card()
    runs = BoundRuns(session, signature, card)
    monkeypatch.setattr("polyhead_server.engine.bound._KEPT_BYTES", 10_000)
    for seed in range(2):
        runs.run(ragged(signature, 8, 64, seed), ["output"], ort.RunOptions())

    assert len(card.taken) == 6


def test_results_stay_as_they_are_while_others_are_computed(open_graph: "Open") -> None:
    session, signature = open_graph("tiny", "fast")
    runs = BoundRuns(session, signature, Card())
    kept = [runs.run(ragged(signature, 3, 11, seed), ["output"], ort.RunOptions()) for seed in range(4)]

    for seed, values in enumerate(kept):
        again = runs.run(ragged(signature, 3, 11, seed), ["output"], ort.RunOptions())
        np.testing.assert_array_equal(values["output"], again["output"])
    assert len({values["output"].ctypes.data for values in kept}) == 4


def test_runs_at_once_have_buffers_of_their_own(open_graph: "Open") -> None:
    session, signature = open_graph("tiny", "attention")
    runs = BoundRuns(session, signature, Card())
    feeds = [ragged(signature, 3, 20, seed) for seed in range(4)]
    alone = [runs.run(one, ["output"], ort.RunOptions())["output"] for one in feeds]
    wrong: list[int] = []

    def repeat(number: int) -> None:
        for _ in range(20):
            value = runs.run(feeds[number], ["output"], ort.RunOptions())["output"]
            if not np.array_equal(value, alone[number]):
                wrong.append(number)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_after_a_lack_of_memory_it_gives_back_what_it_has_and_goes_on(open_graph: "Open") -> None:
    session, signature = open_graph("tiny", "fast")
    card = Card()
    runs = BoundRuns(session, signature, card)
    small = ragged(signature, 2, 8, 0)
    expected = runs.run(small, ["output"], ort.RunOptions())["output"]
    card.left = 4096
    with pytest.raises(RuntimeError, match="out of memory"):
        runs.run(ragged(signature, 9, 30, 1), ["output"], ort.RunOptions())
    card.taken.clear()

    np.testing.assert_array_equal(runs.run(small, ["output"], ort.RunOptions())["output"], expected)
    assert len(card.taken) == 3
