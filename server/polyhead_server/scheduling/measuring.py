"""Time an engine on a small grid of (B, T), within a budget."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import log2
from statistics import median
from typing import TypeAlias

from polyhead_server.scheduling.costs import Points

_FEWEST_TOKENS = 8
_MOST_TOKENS = 8192
"""The most tokens (B × T) of a point."""
_LONGEST = 1024
_LARGEST_BATCH = 64
_QUICK_SECONDS = 0.005
_GAIN_SECONDS = 0.03
"""About the time that each side of one comparison takes."""
_ROUNDS = 3
_TYPICAL = 64
"""T of one or two sentences."""

Prepare: TypeAlias = Callable[[int, int], Callable[[], object]]


def grid(max_tokens: int | None, fits: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """Yield the points (B, T) in the order in which they are measured: by B × T, the longest T first.

    Both axes go up in powers of two: T from 8 (or from the graph's own limit, if that is lower).

    Args:
        max_tokens: The largest T of the graph.
        fits: Whether a run of (B, T) is within the limits of memory.
    """
    shortest = min(_FEWEST_TOKENS, max_tokens or _FEWEST_TOKENS)
    longest = min(_LONGEST, max_tokens or _LONGEST)
    total = shortest
    while total <= _MOST_TOKENS:
        tokens, batch = total, 1
        while tokens >= shortest:
            if tokens <= longest and batch <= _LARGEST_BATCH and fits(batch, tokens):
                yield batch, tokens
            tokens, batch = tokens // 2, batch * 2
        total *= 2


def measure(
    prepare: Prepare,
    *,
    max_tokens: int | None = None,
    fits: Callable[[int, int], bool] = lambda _batch, _tokens: True,
    budget: float = 2.0,
    longest_batch: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[tuple[int, int], float]:
    """Time larger and larger runs of the grid until the budget is used up.

    Every point is run once to warm up, and then timed three times, five when it is quick; the median counts.

    Args:
        prepare: Makes the inputs of a run of (B, T), and returns a function that runs it.
        max_tokens: The largest T of the graph.
        fits: Whether a run of (B, T) is within the limits of memory.
        budget: How long it may take in all, in seconds. The first point is measured in any case.
        longest_batch: Points with B > 1 are left out from so many seconds on, by what B = 1 takes.
        clock: Returns the time in seconds.

    Returns:
        Seconds of a run at each point; of every T, B = 1 is there.
    """
    end = clock() + budget
    points: dict[tuple[int, int], float] = {}
    for batch, tokens in grid(max_tokens, fits):
        if batch > 1 and batch * points.get((1, tokens), 0.0) >= longest_batch:
            continue
        # Twice the tokens take about twice as long, at least where it matters.
        guess = 2 * max(points.get((batch // 2, tokens), 0.0), points.get((batch, tokens // 2), 0.0))
        repeats = 5 if guess < _QUICK_SECONDS else 3
        if points and clock() + guess * (repeats + 1) > end:
            break
        if batch > 1 and (1, tokens) not in points:
            continue
        run = prepare(batch, tokens)
        run()
        times = []
        for _ in range(repeats):
            before = clock()
            run()
            times.append(clock() - before)
            if clock() > end:
                break
        points[batch, tokens] = max(median(times), 1e-9)
    return points


def measure_gains(
    prepare: Prepare,
    points: Points,
    *,
    runs: int,
    alone: Prepare | None = None,
    budget: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Compare several runs at once with runs one after the other, at B = 1.

    Both sides alternate, so that a machine that is slow for a while is slow for both.

    Args:
        prepare: Makes the inputs of a run of (B, T), and returns a function that runs it.
        points: What single runs take, from `measure`.
        runs: How many at once.
        alone: Prepares the runs that go one after the other, if these have more threads. None if they are
            alike: then runs at once fill gaps, which do not grow with T. So the shortest T is measured
            first, gains never rise with T, and beyond the longest measured T there is none.
        budget: How long it may take in all, in seconds.
        clock: Returns the time in seconds.

    Returns:
        By T: the throughput of so many runs at once, over that of one at a time; 1.0 if there was no time to
        measure any.
    """
    if runs == 1:
        return {}
    end = clock() + budget
    gains: dict[int, float] = {}
    lengths = sorted(tokens for batch, tokens in points if batch == 1)
    if alone is not None:
        lengths.sort(key=lambda tokens: abs(log2(tokens / _TYPICAL)))
    with ThreadPoolExecutor(runs) as threads:
        for tokens in lengths:
            seconds = points[1, tokens]
            repeats = max(1, min(round(_GAIN_SECONDS / seconds / _ROUNDS), 100))
            # Each round, and at first a run of every thread, which takes memory of its own.
            round_seconds = 2 * runs * seconds
            if clock() + (_ROUNDS * repeats + 1) * round_seconds <= end:
                rounds = _ROUNDS
            elif alone is None and clock() + 2 * round_seconds <= end:
                rounds = repeats = 1
            elif alone is None:
                break
            else:
                continue  # a shorter one may still be possible
            run = prepare(1, tokens)
            one = partial(_repeat, run if alone is None else alone(1, tokens), repeats)
            at_once = partial(_repeat, run, repeats)
            _run_at_once(run, threads, runs)
            gains[tokens] = median(_gain(one, at_once, threads, runs, clock) for _ in range(rounds))
    if alone is not None:
        return gains or {lengths[0]: 1.0}
    gains[2 * max(gains) if gains else lengths[0]] = 1.0
    return dict(zip(gains, _falling(list(gains.values())), strict=True))


def _repeat(run: Callable[[], object], repeats: int) -> None:
    for _ in range(repeats):
        run()


def _run_at_once(run: Callable[[], object], threads: ThreadPoolExecutor, runs: int) -> None:
    for done in [threads.submit(run) for _ in range(runs)]:
        done.result()


def _gain(
    one: Callable[[], object],
    at_once: Callable[[], object],
    threads: ThreadPoolExecutor,
    runs: int,
    clock: Callable[[], float],
) -> float:
    begun = clock()
    for _ in range(runs):
        one()
    alone = clock() - begun
    begun = clock()
    _run_at_once(at_once, threads, runs)
    return alone / max(clock() - begun, 1e-9)


def _falling(values: Sequence[float]) -> list[float]:
    """Return the nearest values that never rise: those that do are averaged (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] < mean:
            before, size = pools.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
