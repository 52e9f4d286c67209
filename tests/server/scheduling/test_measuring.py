"""An engine is timed on a grid, within a budget."""

import threading
from collections.abc import Callable

import pytest

from polyhead_server.scheduling.measuring import Prepare, grid, measure, measure_gains


class Machine:
    """Takes a known time for every run, on a clock of its own."""

    def __init__(self, seconds_per_token: float, overhead: float = 0.0, warm_up: float = 0.0) -> None:
        self.now = 100.0
        self.runs: list[tuple[int, int]] = []
        self._seconds_per_token = seconds_per_token
        self._overhead = overhead
        self._warm_up = warm_up

    def prepare(self, batch: int, tokens: int) -> Callable[[], object]:
        def run() -> None:
            if (batch, tokens) not in self.runs:
                self.now += self._warm_up
            self.runs.append((batch, tokens))
            self.now += self._overhead + batch * tokens * self._seconds_per_token

        return run

    def clock(self) -> float:
        return self.now


def test_the_grid_grows_by_tokens_and_starts_each_length_alone() -> None:
    points = list(grid(64, lambda _batch, _tokens: True))

    assert points[:6] == [(1, 8), (1, 16), (2, 8), (1, 32), (2, 16), (4, 8)]
    assert max(tokens for _, tokens in points) == 64
    assert max(batch for batch, _ in points) == 64
    assert len(points) == len(set(points))


def test_the_grid_keeps_to_limits() -> None:
    assert list(grid(5, lambda batch, tokens: batch * tokens <= 10)) == [(1, 5), (2, 5)]


def test_a_fast_machine_is_measured_everywhere() -> None:
    machine = Machine(1e-8, overhead=1e-5)
    points = measure(machine.prepare, clock=machine.clock)

    assert set(points) == set(grid(None, lambda _batch, _tokens: True))
    assert abs(points[4, 32] - (1e-5 + 128e-8)) < 1e-9


def test_a_slow_machine_is_measured_within_the_budget() -> None:
    machine = Machine(0.001)
    points = measure(machine.prepare, budget=2.0, clock=machine.clock)

    assert machine.now <= 102.0
    assert (1, 64) in points
    assert all((1, tokens) in points for _, tokens in points)


def test_one_point_is_measured_whatever_it_takes() -> None:
    machine = Machine(10.0)

    assert list(measure(machine.prepare, budget=0.0, clock=machine.clock)) == [(1, 8)]
    assert len(machine.runs) == 2


def test_the_first_run_of_a_shape_does_not_count() -> None:
    machine = Machine(1e-6, warm_up=0.01)
    points = measure(machine.prepare, budget=0.5, clock=machine.clock)

    assert abs(points[1, 8] - 8e-6) < 1e-9


def test_what_runs_at_once_gain_is_measured_within_the_budget() -> None:
    meeting = threading.Barrier(2, timeout=10)
    asked: list[tuple[int, int]] = []

    def prepare(batch: int, tokens: int) -> Callable[[], object]:
        asked.append((batch, tokens))
        return lambda: threading.current_thread() is threading.main_thread() or meeting.wait()

    points = {(1, 8): 0.01, (2, 8): 0.02, (1, 16): 0.02, (1, 32): 10.0}
    gains = measure_gains(prepare, points, runs=2, budget=1.0)

    assert asked == [(1, 8), (1, 16)]
    assert list(gains) == [8, 16, 32]
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert not measure_gains(prepare, points, runs=1)


def test_where_there_is_no_time_to_measure_a_gain_there_is_none() -> None:
    def prepare(_batch: int, _tokens: int) -> Callable[[], object]:
        raise AssertionError("there is no time")

    points = {(1, 8): 10.0, (1, 16): 20.0}
    assert measure_gains(prepare, points, runs=2, budget=1.0) == {8: 1.0}
    assert measure_gains(prepare, points, runs=2, budget=1.0, alone=prepare) == {16: 1.0}


def test_noise_in_gains_is_evened_out() -> None:
    seconds = {8: 1 / 1.2, 16: 1 / 1.0, 32: 1 / 1.1, 64: 1 / 0.8}
    now = 0.0
    turn = threading.Lock()

    def prepare(_batch: int, tokens: int) -> Callable[[], object]:
        def run() -> None:
            nonlocal now
            with turn:
                now += 1 if threading.current_thread() is threading.main_thread() else seconds[tokens]

        return run

    points = {(1, tokens): 0.1 for tokens in seconds}
    gains = measure_gains(prepare, points, runs=2, budget=100.0, clock=lambda: now)

    assert gains == pytest.approx({8: 1.2, 16: 1.05, 32: 1.05, 64: 0.9, 128: 0.9})


def test_runs_with_a_thread_each_are_measured_against_those_with_all_threads() -> None:
    now = 0.0
    turn = threading.Lock()
    asked: list[tuple[str, int]] = []

    def machine(name: str, seconds: float) -> Prepare:
        def prepare(_batch: int, tokens: int) -> Callable[[], object]:
            asked.append((name, tokens))

            def run() -> None:
                nonlocal now
                with turn:
                    now += seconds * tokens

            return run

        return prepare

    points = {(1, tokens): 0.001 * tokens for tokens in (8, 16, 32, 64, 128)}
    gains = measure_gains(
        machine("one thread", 0.0008),  # each at once: they take turns in this machine
        points,
        runs=2,
        alone=machine("all threads", 0.001),
        budget=2.0,
        clock=lambda: now,
    )

    assert asked[:2] == [("one thread", 64), ("all threads", 64)]  # what is typical first
    assert {tokens for _, tokens in asked} == set(gains)
    assert 128 not in gains  # it would have taken too long; shorter ones did not
    assert {8, 16, 32} <= set(gains)
    assert list(gains.values()) == pytest.approx([1.25] * len(gains))
