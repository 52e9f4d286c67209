"""The strongest edges of attention: which token attends to which.

Shape letters: T tokens, H heads.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_client.padding import described
from polyhead_proto.outputs.evidence import segments_of
from polyhead_proto.wants import check_count

BOUNDARY_TOKENS = frozenset(
    {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<cls>", "<sep>", "<bos>", "<eos>", "<|endoftext|>"}
)
"""Tokens that a tokenizer puts around a text. Heads attend to them when nothing else is relevant."""


class Edge(NamedTuple):
    """The attention of one query to one key."""

    query: int
    """The position that attends."""
    key: int
    """The position that is attended to."""
    weight: float


def strongest_edges(
    weights: NDArray[Any], *, top: int | None = 3, skip: Collection[int] = ()
) -> list[list[Edge]]:
    """Return the heaviest edges of each head, heaviest first; ties go to the earlier query and key.

    Args:
        weights: [H, T_query, T_key], as `Encoding.attention[layer]` of one sequence.
        top: The number of edges of each head; None means all.
        skip: Positions to leave out, such as those of [CLS] and [SEP], to which heads attend when nothing
            else is relevant.

    Returns:
        For each head, at most `top` edges.

    Raises:
        ValueError: `weights` are not numbers with three axes, or `top` is not 1 or more.
    """
    weights, count = np.asarray(weights), check_count("top", top)
    if weights.ndim != 3 or weights.dtype.kind not in "fiu":
        raise ValueError(f"weights must be numbers [H, T_query, T_key], was {described(weights)}")
    skipped = set(skip)
    queries = np.array([query for query in range(weights.shape[1]) if query not in skipped], np.intp)
    keys = np.array([key for key in range(weights.shape[2]) if key not in skipped], np.intp)
    edges: list[list[Edge]] = []
    for head in weights:
        kept = head[np.ix_(queries, keys)].reshape(-1)
        order = np.argsort(-kept.astype(np.float64), kind="stable")[:count]
        edges.append(
            [
                Edge(int(queries[at // len(keys)]), int(keys[at % len(keys)]), float(kept[at]))
                for at in order.tolist()
            ]
        )
    return edges


def boundaries(tokens: Sequence[str]) -> Collection[int]:
    """Return the positions of tokens that are not part of the text itself."""
    return {position for position, token in enumerate(tokens) if token in BOUNDARY_TOKENS}


def second_text_start(tokens: Sequence[str] | None, spans: NDArray[Any] | None) -> int | None:
    """Return the position of the first token of a pair's second text; None if there is none to be seen.

    Args:
        tokens: Those of one sequence: special ones part the texts.
        spans: Where they are in the texts, [T, 3], which is certain; None if nobody asked.
    """
    if spans is not None:
        second = segments_of(spans)[1].tolist()
        return second[0] if second else None
    of_texts = [at for at, token in enumerate(tokens or ()) if token not in BOUNDARY_TOKENS]
    starts = [at for before, at in pairwise(of_texts) if at - before > 1]
    return starts[0] if len(starts) == 1 else None
