"""Time a few runs of a new session: the first costs of its cost model."""

import time
from collections.abc import Callable
from math import inf

from polyhead_server.scheduling.costs import Size

_SIZES = ((1, 8), (8, 8), (1, 64), (1, 256), (8, 64))
"""Small ones first: together they show the fixed cost, that of tokens, and that of attention."""
_SECONDS = 0.1
_MOST_RUNS = 5
"""Runs of a size: so many that hardly all of them are disturbed."""


def measure_prior(
    run: Callable[[int, int], object],
    *,
    max_tokens: int | None,
    fits: Callable[[int, int], bool],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Size, float]:
    """Time a few runs for about a tenth of a second, and so warm the session up.

    The smallest size is run in any case, and twice if the first run ends in time.

    Args:
        run: Runs (B, T) without padding once.
        max_tokens: The largest T of the graph, if it has one.
        fits: Whether a run of (B, T) is within the limits of memory.
        clock: Returns the time in seconds.

    Returns:
        Seconds of a run of each size.
    """
    end = clock() + _SECONDS
    times: dict[Size, float] = {}
    per_token = 0.0
    for batch, most in _SIZES:
        longest = min(most, max_tokens or most)
        size = Size.full(batch, longest)
        # At least two runs, since the first of a size also takes memory, and more if they are short. A token
        # takes no longer than in the runs before, as long as attention does not prevail.
        expected = 2 * per_token * size.tokens
        if times and (size in times or not fits(batch, longest) or clock() + expected > end):
            continue
        started = clock()
        for number in range(_MOST_RUNS):
            begun = clock()
            run(batch, longest)
            done = clock()
            # The fastest counts: what else happens at load only slows runs down.
            times[size] = min(times.get(size, inf), max(done - begun, 1e-9))
            if done > end or (number and done - started > _SECONDS / len(_SIZES)):
                break
        per_token = times[size] / size.tokens
    return times
