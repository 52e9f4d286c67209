"""A few runs of a new session are timed, within a budget."""

import pytest

from polyhead_server.scheduling.costs import LARGE_SIZES, CostModel, Size, measure_prior


class Machine:
    """Takes a known time for every run, on a clock of its own."""

    def __init__(self, fixed: float, per_token: float, first: float = 0.0) -> None:
        self.now = 100.0
        self.runs: list[tuple[int, int]] = []
        self._fixed = fixed
        self._per_token = per_token
        self._first = first

    def run(self, batch: int, tokens: int) -> None:
        if (batch, tokens) not in self.runs:
            self.now += self._first
        self.runs.append((batch, tokens))
        self.now += self._fixed + self._per_token * batch * tokens

    def clock(self) -> float:
        return self.now

    def prior(self, max_tokens: int | None = None, most: int = 10_000) -> dict[Size, float]:
        """Measure runs of up to so many tokens (B × T)."""
        return measure_prior(
            self.run,
            max_tokens=max_tokens,
            fits=lambda batch, tokens: batch * tokens <= most,
            clock=self.clock,
        )


@pytest.mark.parametrize("per_token", [1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 5e-3])
def test_it_keeps_to_its_budget(per_token: float) -> None:
    machine = Machine(10 * per_token, per_token)
    prior = machine.prior()

    assert machine.now < 100 + max(0.11, 2.1 * 18 * per_token)
    assert prior
    assert CostModel(prior).price(Size.full(1, 8)) == pytest.approx(18 * per_token, rel=0.1)


def test_a_fast_machine_shows_all_parts_of_its_costs() -> None:
    prior = Machine(1e-4, 1e-6).prior()

    assert len({size.rows for size in prior}) > 1
    assert len({size.longest for size in prior}) > 2


def test_what_disturbs_a_run_does_not_count() -> None:
    prior = Machine(1e-4, 1e-6, first=5e-3).prior()

    assert prior[Size.full(1, 8)] == pytest.approx(1e-4 + 8e-6)


def test_a_gpu_runs_what_it_will_meet_before_it_serves() -> None:
    """A run of few tokens takes as long as its launches; only large ones show what a token costs."""
    machine = Machine(0.0, 0.0)

    def run(batch: int, tokens: int) -> None:
        machine.now += max(5e-4, 5e-8 * batch * tokens)

    prior = measure_prior(run, max_tokens=512, fits=lambda *_: True, sizes=LARGE_SIZES, clock=machine.clock)

    assert {Size.full(*size) for size in LARGE_SIZES} == prior.keys()
    assert CostModel(prior).price(Size.full(256, 128)) == pytest.approx(1.6e-3, rel=0.3)


@pytest.mark.parametrize("max_tokens", [1, 5, 8, 64, None])
@pytest.mark.parametrize("most", [0, 64, 512])
def test_limits_are_kept_but_one_run_is_made(max_tokens: int | None, most: int) -> None:
    machine = Machine(1e-4, 1e-6)
    prior = machine.prior(max_tokens, most)

    assert max(tokens for _, tokens in machine.runs) <= (max_tokens or 10_000)
    assert Size.full(1, min(8, max_tokens or 8)) in prior
    assert all(size.tokens <= most for size in list(prior)[1:])


def test_a_clock_that_stands_still_is_no_error() -> None:
    prior = measure_prior(
        lambda _batch, _tokens: None, max_tokens=None, fits=lambda _batch, _tokens: True, clock=lambda: 1.0
    )

    assert CostModel(prior).price(Size.full(1, 8)) > 0
