"""Evidence for a rank: the tokens of a query and of a text that attend to each other most.

Shape letters: T tokens of the pair of both texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """0 to 1; see `evidence_of`."""


def evidence_layers(layers: Iterable[int]) -> list[int]:
    """Return those layers of a graph from whose attention evidence is made: all but the last.

    Most rerankers read one token of the last layer, in which what others attend to changes no score. It
    counts only where it is the only one.
    """
    every = sorted(layers)
    return every[:-1] or every


def evidence_of(
    gathered: Iterable[NDArray[Any]], spans: NDArray[Any], tokens: Sequence[str], count: int
) -> list[EvidencePair]:
    """Return the pairs of tokens with the largest weights, of equal ones the earlier.

    A weight is the mean over layers, and over both directions, of the share that one token has in all that
    the other gathers.

    Args:
        gathered: Of each of `evidence_layers`, what each token gathers of each, [T, T]: the sum over heads of
            norm-weighted attention (Kobayashi et al. 2020, arXiv 2004.10102).
        spans: Where tokens are in the texts, [T, 3]; negative for tokens of none.
        tokens: T strings.
        count: The most pairs.
    """
    query, text = segments_of(spans)
    directions = [
        direction
        for each in gathered
        for direction in (_shares(each, query, text), _shares(each, text, query).T)
    ]
    weights = np.mean(directions, axis=0)

    def located(at: int) -> TextToken:
        return TextToken(at, tokens[at], int(spans[at, 0]), int(spans[at, 1]))

    return [
        EvidencePair(
            located(int(query[at // len(text)])), located(int(text[at % len(text)])), float(weights.flat[at])
        )
        for at in np.argsort(-weights, axis=None, kind="stable")[:count].tolist()
    ]


def _shares(gathered: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the shares that some tokens have in all that others gather, [rows, columns]."""
    of_all = gathered[rows].sum(-1, keepdims=True, dtype=np.float64)
    return np.asarray(gathered[np.ix_(rows, columns)] / np.maximum(of_all, np.finfo(np.float32).tiny))


def segments_of(spans: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the positions of the tokens of the first and of the second text; both are empty for one text.

    Args:
        spans: Where tokens are in the texts, [T, 3]; negative for tokens of none.
    """
    of_texts = np.flatnonzero(spans[:, 1] >= 0)
    # A special token stands between the texts, or characters are counted anew.
    (breaks,) = np.nonzero((np.diff(of_texts) > 1) | (np.diff(spans[of_texts, 0]) < 0))
    if not len(breaks):  # one text is empty, or there is one alone
        return of_texts[:0], of_texts[:0]
    first, second = np.split(of_texts, [breaks[0] + 1])
    return first, second
