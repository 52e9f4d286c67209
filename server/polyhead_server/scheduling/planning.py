"""Placeholder: the cut comes from its own branch."""

from collections.abc import Callable, Sequence

from polyhead_server.scheduling.costs import CostModel, Size


def joint(sizes: Sequence[Size]) -> Size:
    """Return (B, T) of requests that run together."""
    return sum(batch for batch, _ in sizes), max(tokens for _, tokens in sizes)


def cut(
    requests: Sequence[Size], costs: CostModel, *, most_rows: Callable[[int], int], lanes: int = 1
) -> list[list[int]]:
    """Cut."""
    order = sorted(range(len(requests)), key=lambda n: requests[n][1])
    sizes = [requests[n] for n in order]
    total = sum(costs.marginal(*s) for s in sizes)
    cap = float("inf") if lanes == 1 else costs.price(1, 1) + total / lanes + 1e-9
    best, starts = [0.0], [0]
    for end in range(1, len(sizes) + 1):
        value, start = best[end - 1] + costs.price(*sizes[end - 1]), end - 1
        for begin in range(end - 2, -1, -1):
            b, t = joint(sizes[begin:end])
            p = costs.price(b, t)
            if b > most_rows(t) or p > cap:
                break
            if best[begin] + p * 1.02 < value:
                value, start = best[begin] + p * 1.02, begin
        best.append(value)
        starts.append(start)
    batches, end = [], len(sizes)
    while end:
        batches.append(order[starts[end] : end])
        end = starts[end]
    first = next(n for n, batch in enumerate(batches) if 0 in batch)
    batches[0], batches[first] = batches[first], batches[0]
    return batches
