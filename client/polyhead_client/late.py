"""The results of late interaction: documents with scores, and which of their tokens each score comes from.

Shape letters: B batch, S tokens of the query, T tokens of a document.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.encoding import Encoding

_NOT_COMPARED = -1
"""The similarity of a token of a document that is not compared."""


@dataclass(frozen=True)
class TokenMatch:
    """A token of the query, and the token of a document that is most similar to it."""

    query_index: int
    query_token: str
    index: int
    """Where it is among the document's tokens."""
    token: str
    similarity: float
    """The cosine of their vectors."""


@dataclass(frozen=True)
class MatchedText:
    """A document that was compared with a query."""

    index: int
    """Where it was among the documents."""
    score: float
    """MaxSim: the sum, over the query's tokens, of the largest cosine with a token of the document."""
    text: str
    matches: tuple[TokenMatch, ...] | None = None
    """One for each token of the query, in order: their similarities add up to the score. Empty where no token
    of the document is compared. None unless asked for."""


def matched(
    documents: Sequence[str], encoding: Encoding, query_tokens: Sequence[str], *, top: int | None
) -> list[MatchedText]:
    """Return documents, the highest score first.

    Args:
        documents: B texts.
        encoding: Theirs, with the largest similarities, and for matches all of them.
        query_tokens: S tokens.
        top: The most results; None means all.
    """
    largest = np.asarray(encoding.max_similarities, np.float64)  # [B, S]
    scores = [math.fsum(row) for row in largest]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top]
    matches: dict[int, tuple[TokenMatch, ...]] = {}
    if encoding.similarities is not None and encoding.tokens is not None:
        for index in order:
            tokens: Any = encoding.tokens[index]
            matches[index] = _matches(largest[index], encoding.similarities[index], query_tokens, tokens)
    return [MatchedText(index, scores[index], documents[index], matches.get(index)) for index in order]


def _matches(
    largest: NDArray[np.float64], similarities: NDArray[Any], query: Sequence[str], document: Sequence[str]
) -> tuple[TokenMatch, ...]:
    """Return what each token of the query matches, from its largest similarity [S], and from all [S, T]."""
    if not (similarities > _NOT_COMPARED).any():
        return ()
    return tuple(
        TokenMatch(number, query[number], at, document[at], float(largest[number]))
        for number, at in enumerate(similarities.argmax(1).tolist())
    )
