"""The search for the strongest limit."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import in_process
from benchmarks.encoders import ENCODERS
from benchmarks.frame import Sample
from benchmarks.in_process import InProcess, RunConfig


def speed_of(rate: float, p50_ms: float = 1.0) -> Sample:
    return Sample(rate=rate, p50_ms=p50_ms)


class Machine:
    """Answers measurements without running anything."""

    def __init__(self, speed: Callable[[RunConfig, int], Sample]) -> None:
        self.measured: list[RunConfig] = []
        self._speed = speed

    def submit(self, _run: object, _encoder: object, _graph: object, config: RunConfig, _s: float) -> Any:
        self.measured.append(config)
        future: Future[Sample] = Future()
        future.set_result(self._speed(config, self.measured.count(config)))
        return future


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "WAYS", ((1, 2), (2, 1)))


def search(machine: Machine, *lengths: int) -> dict[tuple[int, int, bool], float]:
    """What is found: the rate by lanes, batch and whether sorted by length."""
    graph = InProcess(executor=cast(Any, machine), encoder=ENCODERS[0], graph=Path())
    found = graph.search(lengths, 1.0)
    return {(config.lanes, config.batch, config.by_length): rate for config, rate in found.items()}


def test_each_way_has_its_best_batch() -> None:
    peaks = {1: 8, 2: 4}
    machine = Machine(lambda config, _: speed_of(100 - abs(config.batch - peaks[config.lanes])))

    assert search(machine, 64) == {(1, 8, False): 100, (2, 4, False): 100}


def test_mixed_lengths_are_also_sorted() -> None:
    machine = Machine(lambda config, _: speed_of(150 if config.by_length else 100 - config.batch))

    assert set(search(machine, 8, 64)) == {(1, 1, True), (2, 1, True)}


def test_what_is_close_is_measured_again_so_that_luck_does_not_choose() -> None:
    def lucky_once(config: RunConfig, time: int) -> Sample:
        return speed_of((100, 80)[time - 1] if config.batch == 2 else 95.0)

    assert set(search(Machine(lucky_once), 64)) == {(1, 1, False), (2, 1, False)}


@pytest.mark.parametrize("speed", [speed_of(10.0), speed_of(99.0, 5000.0)])
def test_nothing_larger_is_tried_once_it_is_hopeless_or_takes_long(speed: Sample) -> None:
    machine = Machine(lambda config, _: speed if config.batch == 4 else speed_of(100.0))

    search(machine, 64)

    assert max(config.batch for config in machine.measured) == 4


def test_sorted_batches_are_tried_although_single_sequences_are_slow() -> None:
    machine = Machine(
        lambda config, _: speed_of(config.batch + 100.0 * config.by_length * (config.batch > 1))
    )

    assert all(by_length for _, _, by_length in search(machine, 8, 64))
