"""Send a corpus through a model's insight graph, and summarise every head.

Shape letters: H heads, L layers, S scores.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, Encoding, HeadScores, InvalidRequest, ModelInfo, norm_weighted
from polyhead_view.heads.corpus import check_texts
from polyhead_view.heads.statistics import HeadStatistics, RunningStatistics

_TEXTS_AT_ONCE = 64
"""Texts whose thumbnails are in memory at the same time: 64 of BERT-large are 24 MiB."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadSurvey:
    """The heads of a model over a corpus."""

    model: str
    """The family."""
    version: str
    scores: tuple[str, ...]
    """The names of the S scores."""
    layers: tuple[int, ...]
    """The numbers of the L layers."""
    texts: int
    tokens: int
    """In all texts together."""
    raw: HeadStatistics
    """Of attention weights."""
    weighted: HeadStatistics
    """Of norm-weighted attention."""
    pruned: frozenset[tuple[int, int]] = frozenset()
    """Layer and head of each that the encoder has lost to pruning."""
    drift: NDArray[np.float64] | None = None
    """[L, H], see `ablate_heads`; None if heads were not silenced."""
    drift_texts: int = 0
    """The texts that it is the mean of: fewer than `texts` if the measurement was interrupted."""

    @property
    def heads(self) -> int:
        """H."""
        return int(self.raw.scores.mean.shape[1])


def head_name(survey: HeadSurvey, row: int) -> str:
    """Return layer.head of a row of the redundancy."""
    return f"{survey.layers[row // survey.heads]}.{row % survey.heads}"


@dataclass(frozen=True, kw_only=True, eq=False)
class SurveyedBatch:
    """What some texts say of every head."""

    encoding: Encoding
    scores: HeadScores
    weighted_scores: HeadScores
    causal: bool
    """Whether queries see no later keys."""

    @classmethod
    def of(cls, encoding: Encoding, info: ModelInfo) -> "SurveyedBatch":
        """Take a reply apart.

        Raises:
            InvalidRequest: It lacks something.
        """
        scores = encoding.scores
        if (
            scores is None
            or scores.weighted is None
            or encoding.thumbnails is None
            or encoding.value_norms is None
        ):
            raise InvalidRequest(
                f"{encoding.model} must return scores, weighted scores, thumbnails and norms"
            )
        causal = info.visibility is not None and info.visibility.causal
        return cls(encoding=encoding, scores=scores, weighted_scores=scores.weighted, causal=causal)

    def maps(self, at: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the maps of a text, [L, H, T, T], of attention and norm-weighted.

        None for a text whose thumbnails show means over blocks of tokens, in which the previous token looks
        like the next.
        """
        thumbnails: Any = self.encoding.thumbnails
        norms: Any = self.encoding.value_norms
        length = int(np.asarray(self.encoding.lengths)[at])
        if length > thumbnails.shape[-1]:
            return None
        maps = thumbnails[at, ..., :length, :length].astype(np.float64)
        return maps, norm_weighted(maps, np.stack([norms[layer][at] for layer in self.scores.layers]))


class RunningSurvey:
    """The heads of a model over the texts so far; memory does not grow with them."""

    def __init__(
        self, client: Client, *, model: str | None, version: int | str | None = None, truncate: bool
    ) -> None:
        """Prepare a survey; see `survey_heads`."""
        self._client = client
        self._options: dict[str, Any] = {"model": model, "version": version, "truncate": truncate}
        self._raw, self._weighted = RunningStatistics(), RunningStatistics()
        self._texts = self._tokens = 0
        self._last: tuple[ModelInfo, SurveyedBatch] | None = None

    def add(self, texts: Sequence[str]) -> SurveyedBatch:
        """Encode texts and add what the reply says of every head.

        Raises:
            InvalidRequest: A text is too long, or the family has no insight graph.
            PolyheadError: The call failed.
        """
        encoding = self._client.encode(
            texts,
            output=False,
            pooled=False,
            scores=True,
            thumbnails=True,
            value_norms=True,
            **self._options,
        )
        info = self._client.model(encoding.model, version=encoding.version)  # cached
        batch = SurveyedBatch.of(encoding, info)
        self._last = info, batch
        self._raw.scores.add(batch.scores.values)
        self._weighted.scores.add(batch.weighted_scores.values)
        for at in range(len(texts)):
            if (maps := batch.maps(at)) is not None:
                self._raw.maps.add(maps[0], causal=batch.causal)
                self._weighted.maps.add(maps[1], causal=batch.causal)
        self._texts += len(texts)
        self._tokens += int(np.sum(encoding.lengths))
        return batch

    def survey(self) -> HeadSurvey:
        """Return what the texts so far say.

        Raises:
            ValueError: There was no text.
        """
        if self._last is None:
            raise ValueError("there must be a text to survey, was none")
        info, batch = self._last
        return HeadSurvey(
            model=info.family,
            version=batch.encoding.version,
            scores=batch.scores.names,
            layers=batch.scores.layers,
            texts=self._texts,
            tokens=self._tokens,
            raw=self._raw.statistics(),
            weighted=self._weighted.statistics(),
            pruned=frozenset(
                (layer, head)
                for layer, kept in enumerate(info.kept_heads or ())
                for head in set(range(info.heads or 0)) - {*kept}
            ),
        )


def survey_heads(
    client: Client,
    corpus: Sequence[str],
    *,
    model: str | None = None,
    truncate: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> HeadSurvey:
    """Summarise every head of a model over a corpus.

    Memory does not grow with the corpus: texts are sent in batches, of which only sums are kept.

    Args:
        client: A client of the server.
        corpus: The texts.
        model: The family; None means the only one that takes texts.
        truncate: Whether to truncate texts that are too long, instead of raising an error.
        progress: Called with the number of texts that are done, and of all.

    Raises:
        InvalidRequest: There is no text, a text is too long, or the family has no insight graph.
        PolyheadError: The call failed.
    """
    running = RunningSurvey(client, model=model, truncate=truncate)
    in_batches(corpus, running.add, progress)
    return running.survey()


def in_batches(
    corpus: Sequence[str],
    add: Callable[[list[str]], object],
    progress: Callable[[int, int], object] | None,
) -> None:
    """Call a function with all texts of a corpus, some at a time.

    Raises:
        InvalidRequest: There is no text, or the function raised it; the message numbers texts as the corpus.
    """
    check_texts(corpus)
    # Texts of like lengths together: less of a batch is padding.
    order = sorted(range(len(corpus)), key=lambda at: len(corpus[at]))
    for start in range(0, len(order), _TEXTS_AT_ONCE):
        part = order[start : start + _TEXTS_AT_ONCE]
        try:
            add([corpus[at] for at in part])
        except InvalidRequest as error:
            raise InvalidRequest(_in_corpus(str(error), part)) from error
        if progress is not None:
            progress(start + len(part), len(corpus))


def _in_corpus(message: str, part: Sequence[int]) -> str:
    """Number the texts of a request in an error message as the corpus does."""
    return re.sub(r"\btext\[(\d+)\]", lambda match: f"text[{part[int(match[1])]}]", message)
