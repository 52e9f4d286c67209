"""Surveys of made-up heads, and a client that gives what they are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, Encoding, HeadScores, ModelInfo, NotFound, Timings
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


class MadeClient:
    """A client of families with made-up heads, which differ by their place in the alphabet, and by version.

    Each step takes 0.3 from the first score of head 0 of layer 0, adds 0.005 for each character of a text to
    the second of head 1 of layer 2, and gives each head the map of that before it.
    """

    def __init__(self, heads: dict[str, int], *, names: dict[str, tuple[str, ...]] | None = None) -> None:
        """Take the number of heads of each family, and the scores of those that have others."""
        self.heads, self.names = heads, names or {}
        self.tokens = str.split

    def as_client(self) -> Client:
        return cast(Client, self)

    def model(self, name: str | None, **_: object) -> ModelInfo:
        name = name or min(self.heads)
        family = name.partition(".")[0]
        properties = {"family": family, "layers": "3", "heads": str(self.heads[family])}
        return ModelInfo(
            name=name, versions=("1",), platform="", inputs={}, outputs={}, properties=properties
        )

    def encode(
        self, texts: Sequence[str], *, model: str | None, version: object = None, **_: object
    ) -> Encoding:
        model = model or min(self.heads)
        if model not in self.heads:
            raise NotFound(f"no model {model}")
        step = sorted(self.heads).index(model) + int(str(version or 1)) - 1
        heads, names = tuple(range(self.heads[model])), self.names.get(model, SCORES)
        tokens = [["[CLS]", *self.tokens(text), "[SEP]"] for text in texts]
        values = np.concatenate([scores(text) for text in texts])[:, :, : len(heads)]
        values[:, 0, 0, 0] -= np.float32(step * 0.3)
        values[:, 1, 1, 1] += [np.float32(step * 0.005 * len(text)) for text in texts]
        values = values[..., : len(names)]
        maps = np.zeros((len(texts), len(LAYERS), len(heads), SIDE, SIDE), np.uint8)
        for map_, words in zip(maps, tokens, strict=True):
            if (count := len(words)) <= SIDE:
                drawn = np.roll(attention(count), step, axis=1)[:, : len(heads)]
                map_[..., :count, :count] = np.round(255 * drawn / drawn.max((-1, -2), keepdims=True))
        made = HeadScores(values=values, names=names, layers=LAYERS, heads=heads)
        return Encoding(
            model=f"{model}.insight",
            version=str(version or 1),
            output=None,
            pooled=None,
            heads=heads,
            queries=None,
            tokens=tokens,
            lengths=np.array([len(words) for words in tokens]),
            timings=Timings(total_ns=1),
            scores=replace(made, weighted=replace(made, values=values / 2)),
            thumbnails=maps,
            value_norms={layer: [np.ones((len(heads), len(words))) for words in tokens] for layer in LAYERS},
        )
