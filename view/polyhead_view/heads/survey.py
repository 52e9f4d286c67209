"""Send a corpus through a model's insight graph, and summarise every head.

Shape letters: H heads, L layers, S scores.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, Encoding, HeadScores, InvalidRequest, norm_weighted
from polyhead_proto.names import Property
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

    @property
    def heads(self) -> int:
        """H."""
        return int(self.raw.scores.mean.shape[1])


def head_name(survey: HeadSurvey, row: int) -> str:
    """Return layer.head of a row of the redundancy."""
    return f"{survey.layers[row // survey.heads]}.{row % survey.heads}"


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
    check_texts(corpus)
    # Texts of like lengths together: less of a batch is padding.
    order = sorted(range(len(corpus)), key=lambda at: len(corpus[at]))
    raw, weighted = RunningStatistics(), RunningStatistics()
    done = tokens = 0
    for start in range(0, len(order), _TEXTS_AT_ONCE):
        part = order[start : start + _TEXTS_AT_ONCE]
        try:
            encoding = client.encode(
                [corpus[at] for at in part],
                model=model,
                output=False,
                pooled=False,
                scores=True,
                thumbnails=True,
                value_norms=True,
                truncate=truncate,
            )
        except InvalidRequest as error:
            raise InvalidRequest(_in_corpus(str(error), part)) from error
        info = client.model(encoding.model, version=encoding.version)  # cached
        scores = _add(encoding, raw, weighted, causal=info.properties.get(Property.CAUSAL) == "true")
        tokens += int(np.sum(encoding.lengths))
        done += len(part)
        if progress is not None:
            progress(done, len(corpus))
    return HeadSurvey(
        model=info.family,
        version=encoding.version,
        scores=scores.names,
        layers=scores.layers,
        texts=len(corpus),
        tokens=tokens,
        raw=raw.statistics(),
        weighted=weighted.statistics(),
        pruned=frozenset(
            (layer, head)
            for layer, kept in enumerate(info.kept_heads or ())
            for head in set(range(info.heads or 0)) - {*kept}
        ),
    )


def _add(
    encoding: Encoding, raw: RunningStatistics, weighted: RunningStatistics, *, causal: bool
) -> HeadScores:
    """Add the results of a request to the statistics; return its scores."""
    scores, thumbnails, norms = encoding.scores, encoding.thumbnails, encoding.value_norms
    if scores is None or scores.weighted is None or thumbnails is None or norms is None:
        raise InvalidRequest(f"{encoding.model} must return scores, weighted scores, thumbnails and norms")
    raw.scores.add(scores.values)
    weighted.scores.add(scores.weighted.values)
    for at, length in enumerate(np.asarray(encoding.lengths).tolist()):
        # The thumbnail of a longer text shows means over blocks of tokens, in which the previous token
        # looks like the next.
        if length <= thumbnails.shape[-1]:
            maps = thumbnails[at, ..., :length, :length].astype(np.float64)
            norms_of_text = np.stack([norms[layer][at] for layer in scores.layers])
            raw.maps.add(maps, causal=causal)
            weighted.maps.add(norm_weighted(maps, norms_of_text), causal=causal)
    return scores


def _in_corpus(message: str, part: Sequence[int]) -> str:
    """Number the texts of a request in an error message as the corpus does."""
    return re.sub(r"\btext\[(\d+)\]", lambda match: f"text[{part[int(match[1])]}]", message)
