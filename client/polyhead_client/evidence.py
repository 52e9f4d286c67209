"""Evidence for a rank: the tokens of a query and of a text that attend to each other most.

Shape letters: T tokens of a pair, H heads.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.encoding import Encoding

DEFAULT_PAIRS = 8


@dataclass(frozen=True)
class TextToken:
    """A token, and where it is."""

    index: int
    """Its position in the encoded pair, special tokens included."""
    token: str
    start: int
    end: int
    """Its place in the query or the text, in characters."""


@dataclass(frozen=True)
class EvidencePair:
    """A token of the query and one of the text."""

    query: TextToken
    text: TextToken
    weight: float
    """0 to 1; see `Client.rerank`."""


def evidence_of(encoding: Encoding, count: int) -> tuple[EvidencePair, ...]:
    """Return the pairs of tokens with the largest weights, of equal ones the earlier.

    Args:
        encoding: That of a pair of texts, with norm-weighted attention, tokens and spans.
        count: The most pairs.
    """
    places, tokens = np.asarray(encoding.spans), encoding.tokens or []
    query, text = _segments(places)
    shares = _shares(encoding)
    weights = (shares[np.ix_(query, text)] + shares[np.ix_(text, query)].T) / 2

    def located(at: int) -> TextToken:
        return TextToken(at, str(tokens[at]), int(places[at, 0]), int(places[at, 1]))

    return tuple(
        EvidencePair(
            located(int(query[at // len(text)])), located(int(text[at % len(text)])), float(weights.flat[at])
        )
        for at in np.argsort(-weights, axis=None, kind="stable")[:count].tolist()
    )


def _shares(encoding: Encoding) -> NDArray[np.float64]:
    """Return the share of each token in what each one gathers, [T, T]: rows sum to 1 or less."""
    layers: Any = sorted((encoding.attention or {}).items())
    total = np.zeros(layers[0][1].shape[1:])
    # Most rerankers read one token of the last layer, in which what others attend to changes no score.
    chosen = layers[:-1] or layers
    for _, attention in chosen:
        gathered = attention.sum(0, dtype=np.float64)
        total += gathered / np.maximum(gathered.sum(-1, keepdims=True), np.finfo(np.float32).tiny)
    return np.asarray(total / len(chosen))


def _segments(places: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the positions of the tokens of the first and of the second text, from spans [T, 3]."""
    of_texts = np.flatnonzero(places[:, 1] >= 0)
    # A special token stands between the texts, or characters are counted anew.
    (breaks,) = np.nonzero((np.diff(of_texts) > 1) | (np.diff(places[of_texts, 0]) < 0))
    if not len(breaks):  # one text is empty
        return of_texts[:0], of_texts[:0]
    first, second = np.split(of_texts, [breaks[0] + 1])
    return first, second
