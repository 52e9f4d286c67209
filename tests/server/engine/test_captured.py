"""Sizes that come often are captured once and replayed; on the CPU's memory, where a replay is a run."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.server.engine.conftest import ragged

from polyhead_server.engine.captured import CapturedRuns
from polyhead_server.engine.gate import Gate
from polyhead_server.engine.memory import HostMemory, Memory
from polyhead_server.engine.runs import PlainRuns
from polyhead_server.signature import Signature

if TYPE_CHECKING:
    from tests.server.engine.conftest import Open


class Session:
    """A session that remembers with which graph it was run, in which thread and over which buffers."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.graphs: list[str] = []
        self.threads: set[int] = set()
        self.bound: dict[str, set[tuple[int, ...]]] = {}
        self.fails: Callable[[str], bool] = lambda _graph: False
        self.words = "CUDA failure 901: operation failed due to a previous error during capture"
        self._session = session

    def io_binding(self) -> Any:
        return Binding(self._session)

    def run_with_iobinding(self, binding: "Binding", options: ort.RunOptions) -> None:
        graph = options.get_run_config_entry("gpu_graph_id")
        self.graphs.append(graph)
        self.threads.add(threading.get_ident())
        self.bound.setdefault(graph, set()).add(tuple(sorted(binding.addresses.values())))
        if self.fails(graph):
            raise RuntimeError(self.words)
        self._session.run_with_iobinding(binding.real, options)


class Binding:
    def __init__(self, session: ort.InferenceSession) -> None:
        self.real = session.io_binding()
        self.addresses: dict[str, int] = {}

    def bind_input(self, name: str, *form: Any) -> None:
        self.addresses[name] = form[-1]
        self.real.bind_input(name, *form)

    def bind_output(self, name: str, *form: Any) -> None:
        self.addresses[name] = form[-1]
        self.real.bind_output(name, *form)

    def clear_binding_inputs(self) -> None:
        self.real.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        self.real.clear_binding_outputs()


Opened = tuple[Session, PlainRuns, Signature]


@pytest.fixture
def opened(open_graph: "Open") -> Opened:
    session, signature = open_graph("tiny", "attention")
    return Session(session), PlainRuns(session), signature


def captured(opened: Opened, *, memory: Memory | None = None, **options: Any) -> CapturedRuns:
    """Runs that callers' runs may begin on."""
    runs = CapturedRuns(opened[0], opened[2], memory or HostMemory(), **options)
    runs.serve()
    return runs


def check(runs: CapturedRuns, opened: Opened, batch: int, tokens: int, seed: int) -> None:
    """Runs once, and compares with a plain run."""
    feeds = ragged(opened[2], batch, tokens, seed)
    names = ["attention.0", "output"] if seed % 2 else ["output"]
    expected = opened[1].run(feeds, names, ort.RunOptions())
    values = runs.run(feeds, names, ort.RunOptions())
    assert list(values) == names
    for name in names:
        np.testing.assert_allclose(values[name], expected[name], atol=2e-6)


def test_the_second_run_of_a_size_captures_it_and_all_later_ones_replay(opened: Opened) -> None:
    session = opened[0]
    runs = captured(opened)
    for seed, (batch, tokens) in enumerate([(2, 7), (2, 8), (3, 8), (2, 5), (2, 3), (3, 1), (9, 9)]):
        check(runs, opened, batch, tokens, seed)

    assert session.graphs == ["-1", "1", "1", "-1", "1", "1", "2", "2", "-1"]
    assert {graph: len(bound) for graph, bound in session.bound.items() if graph != "-1"} == {"1": 1, "2": 1}


def test_all_runs_are_in_one_thread_of_their_own(opened: Opened) -> None:
    runs = captured(opened)
    wrong: list[BaseException] = []

    def some(seed: int) -> None:
        try:
            for tokens in (4, 12, 20):
                check(runs, opened, 2, tokens, seed)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=some, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert len(opened[0].threads) == 1
    assert threading.get_ident() not in opened[0].threads


def test_graphs_are_few(opened: Opened) -> None:
    runs = captured(opened, most=2)
    for tokens in (8, 16, 24, 32):
        for seed in range(3):
            check(runs, opened, 1, tokens, seed)

    assert set(opened[0].graphs) == {"-1", "1", "2"}


def test_large_runs_are_not_captured(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyhead_server.engine.captured._LARGEST_BYTES", 10_000)
    runs = captured(opened)
    for seed in range(3):
        check(runs, opened, 1, 8, seed)
        check(runs, opened, 4, 24, seed)

    assert opened[0].graphs.count("1") == 3
    assert opened[0].graphs.count("-1") == 4


def test_where_a_capture_fails_runs_go_on_without(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    opened[0].fails = lambda graph: graph == "1"
    runs = captured(opened)
    for seed in range(4):
        check(runs, opened, 2, 8, seed)
        check(runs, opened, 1, 8, seed)

    assert opened[0].graphs.count("1") == 1
    assert set(opened[0].graphs) == {"1", "-1"}
    assert "no more CUDA graphs" in caplog.text


def test_a_failed_run_is_raised_and_the_next_one_works(opened: Opened) -> None:
    runs = captured(opened)
    for seed in range(3):
        check(runs, opened, 2, 8, seed)
    opened[0].fails = lambda _graph: True
    with pytest.raises(RuntimeError, match="CUDA failure 901"):
        check(runs, opened, 2, 8, 0)
    opened[0].fails = lambda _graph: False

    check(runs, opened, 2, 8, 5)


def test_what_is_run_before_callers_come_captures_nothing(opened: Opened) -> None:
    runs = CapturedRuns(opened[0], opened[2], HostMemory())
    for seed in range(5):
        check(runs, opened, 2, 8, seed)
    runs.serve()
    check(runs, opened, 2, 8, 0)
    assert set(opened[0].graphs) == {"-1"}

    check(runs, opened, 2, 8, 1)

    assert opened[0].graphs[6:] == ["1", "1"]


def test_a_size_for_whose_capture_memory_lacks_is_run_without(opened: Opened) -> None:
    opened[0].fails = lambda graph: graph == "1"
    opened[0].words = "CUDA failure 2: out of memory"
    runs = captured(opened)
    for seed in range(4):
        check(runs, opened, 2, 8, seed)
        check(runs, opened, 1, 8, seed)

    assert opened[0].graphs.count("1") == 1
    assert opened[0].graphs.count("2") == 4
    assert set(opened[0].graphs) == {"1", "2", "-1"}


@pytest.mark.parametrize("words", ["CUDA failure 700: an illegal memory access", "CUBLAS failure 13"])
def test_a_device_that_is_lost_in_a_capture_is_no_small_matter(opened: Opened, words: str) -> None:
    class Memory(HostMemory):
        def check(self) -> None:
            raise RuntimeError("CUDA failure 700: an illegal memory access was encountered")

    opened[0].fails = lambda graph: graph == "1"
    opened[0].words = words
    runs = captured(opened, memory=Memory())
    check(runs, opened, 2, 8, 0)
    with pytest.raises(RuntimeError, match=words):
        check(runs, opened, 2, 8, 1)


def test_closing_waits_for_a_capture_elsewhere_and_drops_everything(opened: Opened) -> None:
    gate = Gate()
    runs = captured(opened, gate=gate)
    for seed in range(3):
        check(runs, opened, 2, 8, seed)
    kept = weakref.ref(runs._graphs[2, 8].lane)
    thread = threading.Thread(target=runs.close)
    with gate.alone():
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert kept() is not None
    thread.join()
    gc.collect()

    assert kept() is None
