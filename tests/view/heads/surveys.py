"""A stand-in for a client whose model has an insight graph, with made-up heads."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, Encoding, HeadScores, InvalidRequest, ModelInfo, Timings
from polyhead_view.heads.survey import HeadSurvey, survey_heads

LAYERS, HEADS, SIDE = (0, 2), 3, 8
SCORES = ("previous", "next", "normalised_entropy", "duplicate")
TOO_LONG = 40


class InsightClient:
    """Answers `encode` as the insight graph does; a text has a token for each word, and two around them."""

    def __init__(self, *, causal: bool = False) -> None:
        self.batches: list[list[str]] = []
        self._causal = causal

    def model(self, name: str, version: str | None = None) -> ModelInfo:
        properties = {"causal": str(self._causal).lower()}
        return ModelInfo(
            name=name, versions=("1",), platform="", inputs={}, outputs={}, properties=properties
        )

    def encode(self, texts: Sequence[str], *, truncate: bool, **wanted: Any) -> Encoding:
        assert wanted["scores"] is wanted["thumbnails"] is wanted["value_norms"] is True
        lengths = [len(text.split()) + 2 for text in texts]
        for at, length in enumerate(lengths):
            if length > TOO_LONG and not truncate:
                raise InvalidRequest(f"text[{at}] must be at most {TOO_LONG} tokens, was {length}")
        self.batches.append(list(texts))
        maps = [attention(length) for length in lengths]
        raw = np.stack([scores(text) for text in texts])
        return Encoding(
            model="made.insight",
            version="1",
            output=None,
            pooled=None,
            attention=None,
            heads=tuple(range(HEADS)),
            queries=None,
            tokens=None,
            lengths=np.array(lengths),
            timings=Timings(total_ns=1),
            value_norms={layer: [norms(length)[at] for length in lengths] for at, layer in enumerate(LAYERS)},
            scores=head_scores(raw, head_scores(raw / 2)),
            thumbnails=np.stack([thumbnails(each) for each in maps]),
        )


def head_scores(values: NDArray[Any], weighted: HeadScores | None = None) -> HeadScores:
    return HeadScores(
        values=values, names=SCORES, layers=LAYERS, heads=tuple(range(HEADS)), weighted=weighted
    )


def scores(text: str) -> NDArray[np.float32]:
    """[L, H, S] that depend on the text; head 0 of layer 0 has a role, and short texts no duplicates."""
    values = np.random.default_rng(len(text)).random(
        (len(LAYERS), HEADS, len(SCORES)), np.float32
    ) / np.float32(5)
    values[0, 0, 0] = 0.9
    if len(text.split()) < 4:
        values[..., 3] = np.nan
    return values


def attention(length: int) -> NDArray[np.float64]:
    """[L, H, T, T] with rows that sum to 1; the last two heads do the same."""
    raw = np.random.default_rng(length).random((len(LAYERS), HEADS, length, length)) + 0.1
    raw[1, 2] = 3 * raw[1, 1]
    return np.asarray(raw / raw.sum(-1, keepdims=True))


def norms(length: int) -> NDArray[np.float64]:
    """[L, H, T]; those of the last two heads differ."""
    return np.random.default_rng(length).random((len(LAYERS), HEADS, length)) + 0.5


def thumbnails(maps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """[L, H, side, side]; of a long text it does not matter here what they show."""
    pictures = np.zeros((*maps.shape[:2], SIDE, SIDE), np.uint8)
    length = min(maps.shape[-1], SIDE)
    scaled = np.round(255 * maps / maps.max((-1, -2), keepdims=True))
    pictures[..., :length, :length] = scaled[..., :length, :length]
    return pictures


def survey(texts: Sequence[str] = ("a b", "a b c d e", "a b c", "a"), **kwargs: Any) -> HeadSurvey:
    return survey_heads(cast(Client, InsightClient()), list(texts), **kwargs)
