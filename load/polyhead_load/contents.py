"""Make up lengths, vectors, token ids and sentences, the same for the same seed.

Shape letters: B batch, T tokens, D d_model.
"""

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_load.load_plan import Lengths

SPECIAL_TOKENS = 2
"""Tokens that tokenisers add to a text: [CLS] and [SEP]."""

_QUERY_WORDS = 8
"""Of a pair's query, unless the pair is too short for them."""

# Each is one token in the usual English vocabularies.
_WORDS = (
    "the of and to in is was for on that with as by at from it an were are which this be or had first not "
    "but after one also their his her they has he she we you who all two into time no there year can more "
    "been out up when its would may only about other some over most city state world war day life work "
    "house school family people water small large long high old young good great national many where part"
)


def draw_lengths(tokens: int | Lengths, count: int, random: np.random.Generator) -> list[int]:
    """Draw `count` lengths, in random order.

    Draw one from each of `count` equally likely ranges of the distribution (stratified sampling), so that
    even a few have its mean and its tail.
    """
    if isinstance(tokens, int):
        return [tokens] * count
    normal = NormalDist()
    # Never 0 or 1, where the quantile is infinite.
    quantiles = np.clip((np.arange(count) + random.random(count)) / count, 1e-9, 1 - 1e-9)
    factors = np.exp(tokens.sigma * np.array([normal.inv_cdf(quantile) for quantile in quantiles.tolist()]))
    lengths = np.clip(np.round(tokens.median * factors), tokens.low, tokens.high)
    return [int(length) for length in random.permutation(lengths)]


def texts(lengths: list[int], random: np.random.Generator) -> list[str]:
    """Return a text of about each length, special tokens included."""
    words = np.array(_WORDS.split())
    return [" ".join(random.choice(words, max(1, length - SPECIAL_TOKENS))) for length in lengths]


def pairs(lengths: list[int], random: np.random.Generator) -> tuple[list[str], list[str]]:
    """Return one query, for each passage again, and passages; each pair has about its length.

    Both have a [SEP], so that a pair has one special token more than a text.
    """
    (query,) = texts([min(_QUERY_WORDS, min(lengths) // 4) + SPECIAL_TOKENS], random)
    more = len(query.split()) + 1
    return [query] * len(lengths), texts([length - more for length in lengths], random)


def token_ids(lengths: list[int], vocabulary: int, random: np.random.Generator) -> Any:
    """Return token ids: one array [B, T] for one length, else a list of B arrays [T_i]."""
    return _together([random.integers(vocabulary, size=length) for length in lengths])


def vectors(lengths: list[int], d_model: int, random: np.random.Generator) -> Any:
    """Return vectors: one array [B, T, D] for one length, else a list of B arrays [T_i, D]."""
    return _together([random.standard_normal((length, d_model), dtype=np.float32) for length in lengths])


def _together(sequences: list[NDArray[Any]]) -> Any:
    equal = len({len(sequence) for sequence in sequences}) == 1
    return np.stack(sequences) if equal else sequences
