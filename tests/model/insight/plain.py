"""The measures in plain loops over one head's map, as their definitions read."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.float64]


def visible_pairs(length: int, *, causal: bool) -> NDArray[np.bool_]:
    """What each query sees in a sequence without padding."""
    return np.array([[k <= q or not causal for k in range(length)] for q in range(length)], dtype=bool)


def scores(
    attention: Map, sees: NDArray[np.bool_], ids: Sequence[int], classes: dict[str, set[int]]
) -> dict[str, float]:
    """Every score of one head, of a sequence without padding."""
    length = len(attention)
    queries = [q for q in range(length) if sees[q].sum() >= 2]

    def mean(values: list[float]) -> float:
        return math.fsum(values) / len(values) if values else math.nan

    def on_keys(wanted: Callable[[int, int], bool]) -> float:
        rows = []
        for q in queries:
            keys = [k for k in range(length) if wanted(q, k) and sees[q, k]]
            if keys:
                rows.append(sum(attention[q, k] for k in keys))
        return mean(rows)

    def entropy(q: int) -> float:
        return -math.fsum(weight * math.log(weight) for weight in attention[q] if weight > 0)

    found = {
        "previous": on_keys(lambda q, k: k == q - 1),
        "next": on_keys(lambda q, k: k == q + 1),
        "current": on_keys(lambda q, k: k == q),
        "first": on_keys(lambda q, k: k == 0),
        "entropy": mean([entropy(q) for q in queries]),
        "normalised_entropy": mean([entropy(q) / math.log(sees[q].sum()) for q in queries]),
        "confidence": mean([max(attention[q]) for q in queries]),
        "distance": mean([sum(attention[q, k] * abs(q - k) for k in range(length)) for q in queries]),
    }
    for name, members in classes.items():
        found[name] = on_keys(lambda _, k, of=frozenset(members): ids[k] in of)  # type: ignore[misc]
    found["duplicate"] = on_keys(lambda q, k: k < q and ids[k] == ids[q])
    found["induction"] = on_keys(lambda q, k: 1 <= k <= q and ids[k - 1] == ids[q])
    return found


def norm_weighted(attention: Map, norms: Sequence[float]) -> Map:
    """The map of one head, weighted by the norms of its keys."""
    result = np.zeros_like(attention)
    for q, row in enumerate(attention):
        moved = [weight * norm for weight, norm in zip(row, norms, strict=True)]
        if sum(moved) > 0:
            result[q] = [each / sum(moved) for each in moved]
    return result


def rollout(layers: Sequence[Map]) -> Map:
    """The rollout of maps [H, T, T], one a layer."""
    result = np.eye(layers[0].shape[1])
    for heads in layers:
        augmented = heads.mean(0) + np.eye(heads.shape[1])
        result = (augmented / augmented.sum(1, keepdims=True)) @ result
    return result


def thumbnail(attention: Map, side: int) -> NDArray[np.float64]:
    """The picture of one head's map before rounding, from 0 to 255."""
    length = len(attention)
    block = [t if length <= side else t * side // length for t in range(length)]
    cells = np.zeros((side, side))
    for row in range(side):
        for column in range(side):
            values = [
                attention[q, k]
                for q in range(length)
                for k in range(length)
                if block[q] == row and block[k] == column
            ]
            cells[row, column] = sum(values) / len(values) if values else 0
    return cells * 255 / cells.max() if cells.max() > 0 else cells
