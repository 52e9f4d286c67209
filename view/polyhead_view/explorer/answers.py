"""What the page is told of an encoding: frames of thumbnails, scores and maps.

Shape letters: T tokens, S keys, H heads, L layers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Encoding, HeadScores
from polyhead_proto.outputs.logits import scores_of
from polyhead_view.explorer.frames import pack, quantise, thumbnails
from polyhead_view.scores import score_of

Layers = Mapping[int, NDArray[Any]]


def overview(
    encoding: Encoding, maps: Layers, *, left_out: int | None = 0, scores: HeadScores | None = None
) -> bytes:
    """Return the tokens, and a thumbnail and the scores of each head.

    Args:
        encoding: The encoding of one sequence.
        maps: Layer → [H, T, S], to draw thumbnails of; not needed where the encoding has them.
        left_out: How many tokens truncation left out; None if nobody knows.
        scores: Its scores, if they are of another encoding.
    """
    scores = scores or encoding.scores
    layers = list(scores.layers if scores and encoding.thumbnails is not None else maps)
    heads = list(encoding.heads or ())
    drawn = encoding.thumbnails
    if drawn is None:
        drawn = np.stack([thumbnails(layer) for layer in maps.values()])
    shown = next(iter(maps.values())).shape[1:] if maps else (encoding.lengths,) * 2
    header = {
        **header_of(encoding),
        "left_out": left_out,
        "layers": layers,
        "heads": heads or list(range(drawn.shape[1])),
        "shape": shown,
        "pruned": [
            f"{layer}.{head}" for layer in layers for head in heads if encoding.is_pruned(layer, head)
        ],
        "scores": [{"name": name, **score_of(name)._asdict()} for name in (scores.names if scores else ())],
    }
    found = {"raw": scores, "weighted": scores and scores.weighted}
    return pack(
        header, {"thumbnails": drawn, **{name: one.values for name, one in found.items() if one is not None}}
    )


def map_of(encoding: Encoding, values: NDArray[Any]) -> bytes:
    """Return one map, [T, S]."""
    codes, scale = quantise(values)
    columns = values.shape[1]
    header = header_of(encoding)
    tokens = header["tokens"]
    labels = {
        "tokens": tokens if encoding.queries is None else [tokens[at] for at in encoding.queries],
        "columns": tokens
        if len(tokens) == columns
        else _positions(columns),  # those of a memory have no names
    }
    return pack({**header, **labels, "scale": scale}, {"map": codes})


def header_of(encoding: Encoding) -> dict[str, Any]:
    """Describe a call: the tokens, who answered, how long it took in milliseconds, and a reranker's score."""
    compute = encoding.timings.compute_ns
    length: Any = encoding.lengths
    return {
        "tokens": encoding.tokens or _positions(length),
        "second": encoding.second_text_start,
        **rank_of(encoding),
        "model": encoding.model,
        "total_ms": encoding.timings.total_ns / 1e6,
        "compute_ms": None if compute is None else compute / 1e6,
    }


def rank_of(encoding: Encoding) -> dict[str, float]:
    """Return the logit of a reranker, and the score that is its sigmoid; nothing for other families."""
    if encoding.logits is None or np.shape(encoding.logits) != (1,):
        return {}
    return {"logit": float(encoding.logits[0]), "score": float(scores_of(np.asarray(encoding.logits))[0])}


def _positions(count: int) -> list[str]:
    return [str(at) for at in range(count)]
