"""Cut a queue in order of arrival, for graphs that compute the tokens that exist.

What a token costs hardly depends on what runs beside it, so nothing is sorted by length: first come, first
served. Joining saves the fixed cost of a run. It also makes each token cost more, because the activations of
a large batch do not fit the caches, and attention alone is padded to the longest sequence.
"""

from collections.abc import Iterator, Sequence
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
    ) -> Iterator[list[int]]:
        """Cut requests into batches, each of which grows as long as that saves time, see `Planner`."""
        alone = [costs.marginal(request) for request in requests]
        share = sum(alone) / lanes if lanes > 1 else inf
        fixed, left = costs.fixed, len(requests)
        batch, size, seconds = [0], requests[0], alone[0]
        for position in range(1, len(requests)):
            request, own = requests[position], alone[position]
            rows, longest, tokens = request
            joined = Size(size.rows + rows, max(size.longest, longest), size.tokens + tokens)
            together = costs.marginal(joined)
            left -= 1
            if (
                together - seconds - own > fixed  # the padding of attention costs more than a run
                or seconds + own / 2 > share
                or left < lanes  # each of the other lanes gets a request
                or joined.tokens > costs.best_tokens(joined)
                or not self.fits(joined, at_once)
            ):
                yield batch
                lanes -= 1
                batch, joined, together = [], request, own
            batch.append(position)
            size, seconds = joined, together
        yield batch
