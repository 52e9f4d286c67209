"""A survey of made-up heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_view.heads.statistics import RunningStatistics
from polyhead_view.heads.survey import HeadSurvey

LAYERS, HEADS, SIDE = (0, 2), 3, 8
SCORES = ("previous", "next", "normalised_entropy", "duplicate")


def survey(texts: Sequence[str] = ("a b", "a b c d e", "a b c", "a")) -> HeadSurvey:
    """As of texts that have a token for each word, and two around them."""
    raw, weighted = RunningStatistics(), RunningStatistics()
    lengths = [len(text.split()) + 2 for text in texts]
    for text, length in zip(texts, lengths, strict=True):
        raw.scores.add(scores(text))
        weighted.scores.add(scores(text) / 2)
        if length <= SIDE:
            maps = attention(length)
            raw.maps.add(maps, causal=False)
            weighted.maps.add(maps * maps.max((0, 1, 2)), causal=False)
    return HeadSurvey(
        model="made",
        version="1",
        scores=SCORES,
        layers=LAYERS,
        texts=len(texts),
        tokens=sum(lengths),
        raw=raw.statistics(),
        weighted=weighted.statistics(),
    )


def scores(text: str) -> NDArray[np.float32]:
    """[1, L, H, S] that depend on the text; head 0 of layer 0 has a role, and short texts no duplicates."""
    values = np.random.default_rng(len(text)).random((1, len(LAYERS), HEADS, len(SCORES)), np.float32)
    values /= np.float32(5)
    values[0, 0, 0, 0] = 0.9
    if len(text.split()) < 4:
        values[..., 3] = np.nan
    return values


def attention(length: int) -> NDArray[Any]:
    """[L, H, T, T] with rows that sum to 1; the last two heads do the same."""
    raw = np.random.default_rng(length).random((len(LAYERS), HEADS, length, length)) + 0.1
    raw[1, 2] = 3 * raw[1, 1]
    return np.asarray(raw / raw.sum(-1, keepdims=True))
