"""Cut a queue in order of arrival, for graphs that compute the tokens that exist.

What a token costs hardly depends on what runs beside it, so nothing is sorted by length: first come, first
served. Joining saves the fixed cost of a run. It also makes each token cost more, because the activations of
a large batch do not fit the caches, and attention alone is padded to the longest sequence.
"""

from collections.abc import Sequence
from math import inf

from polyhead_server.scheduling.costs import CostModel, Size
from polyhead_server.scheduling.planning import Planner


class PackedPlanner(Planner):
    """Batches of neighbours in the queue."""

    def joint(self, sizes: Sequence[Size]) -> Size:
        """Return the size of a run of several requests: its tokens are theirs."""
        rows, longest, tokens = zip(*sizes, strict=True)
        return Size(sum(rows), max(longest), sum(tokens))

    def cut(
        self, requests: Sequence[Size], costs: CostModel, *, at_once: int = 1, lanes: int = 1
    ) -> list[list[int]]:
        """Cut requests into batches, each of which grows as long as that saves time, see `Planner`."""
        alone = [costs.marginal(request) for request in requests]
        share = sum(alone) / lanes if lanes > 1 else inf
        fixed = costs.fixed
        batches: list[list[int]] = []
        size, seconds = Size(0, 0, 0), 0.0  # of the last batch
        for position, (request, own) in enumerate(zip(requests, alone, strict=True)):
            rows, longest, tokens = request
            joined = Size(size.rows + rows, max(size.longest, longest), size.tokens + tokens)
            together = costs.marginal(joined)
            if not batches or (
                # More would be lost by the padding of attention than is saved by one run less.
                together - seconds - own > fixed
                or seconds + own / 2 > share
                or len(requests) - position <= lanes - len(batches)
                or joined.tokens > costs.best_tokens(joined)
                or not self.fits(joined, at_once)
            ):
                batches.append([])
                joined, together = request, own
            batches[-1].append(position)
            size, seconds = joined, together
        return batches
