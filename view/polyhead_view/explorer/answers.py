"""What the page is told of an encoding: frames of thumbnails, scores and maps.

Shape letters: T tokens, S keys, H heads, L layers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Encoding, HeadScores
from polyhead_proto.outputs.logits import scores_of
from polyhead_view.drawable import LayerMaps, maps_of
from polyhead_view.explorer.frames import masked_blocks, pack, quantise, thumbnails
from polyhead_view.scores import score_of

Layers = Mapping[int, LayerMaps]


def layers_of(encoding: Encoding, **labels: Any) -> Layers:
    """Return the maps of each layer, of whichever kind of attention an encoding has; see `maps_of`."""
    layers = encoding.attention or encoding.cross_attention
    return {layer: maps_of(encoding, layer, cross=not encoding.attention, **labels) for layer in layers}


def overview(
    encoding: Encoding,
    maps: Layers,
    *,
    left_out: int | None = 0,
    scores: HeadScores | None = None,
    visible: Mapping[int, NDArray[np.bool_] | None] | None = None,
) -> bytes:
    """Return the tokens, and a thumbnail and the scores of each head.

    Args:
        encoding: The encoding of one sequence.
        maps: To draw thumbnails of; not needed where the encoding has them.
        left_out: How many tokens truncation left out; None if nobody knows.
        scores: Its scores, if they are of another encoding.
        visible: Layer → what is not masked, [H or 1, T, S]; None means what the maps know.
    """
    scores = scores or encoding.scores
    layers = list(scores.layers if scores and encoding.thumbnails is not None else maps)
    heads = list(encoding.heads or ())
    drawn = encoding.thumbnails
    if drawn is None:
        drawn = np.stack([thumbnails(layer.weights) for layer in maps.values()])
    shown = next(iter(maps.values())).weights.shape[1:] if maps else (encoding.lengths,) * 2
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
    arrays: dict[str, NDArray[Any]] = {"thumbnails": drawn}
    for name, one in (("raw", scores), ("weighted", scores and scores.weighted)):
        if one is not None:
            arrays[name] = one.values
    if visible is None:
        visible = {layer: of_layer.visible for layer, of_layer in maps.items()}
    if any(each is not None and not each.all() for each in visible.values()):
        everywhere = np.ones((1, *shown), bool)
        masked = [masked_blocks(everywhere if each is None else each) for each in visible.values()]
        arrays["masked"] = np.stack(np.broadcast_arrays(*masked))
    return pack(header, arrays)


def map_of(encoding: Encoding, values: NDArray[Any]) -> bytes:
    """Return one map of all heads together, [T, T]."""
    codes, scale = quantise(values)
    header = header_of(encoding)
    return pack({**header, "columns": header["tokens"], "scale": scale}, {"map": codes})


def head_map_of(encoding: Encoding, maps: LayerMaps, at: int = 0) -> bytes:
    """Return the map of one of a layer's heads, [T, S], and which of its cells are masked."""
    codes, scale = quantise(maps.weights[at])
    header = {**header_of(encoding), "tokens": maps.queries, "columns": maps.keys, "scale": scale}
    arrays: dict[str, NDArray[Any]] = {"map": codes}
    if maps.visible is not None and not maps.visible[at].all():
        arrays["masked"] = (~maps.visible[at]).astype(np.uint8)
    return pack(header, arrays)


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
