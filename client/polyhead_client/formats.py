"""Write the encoding of a list of sequences as JSON.

Shape letters: B batch, T tokens, D d_model, H heads, L layers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.edges import Edge, boundaries, strongest_edges
from polyhead_client.encoding import Encoding

JSON_FORMAT = 1
"""Incremented when a reader of the old format would misread the new one."""


def edges_of(
    encoding: Encoding, index: int, layer: int, *, top: int, special: bool, cross: bool = False
) -> dict[int, list[Edge]]:
    """Return head → strongest edges of a sequence and layer; with special tokens only if `special`.

    Heads that were pruned are left out. With `cross`, edges are those to the memory of a decoder block.
    """
    weights = ((encoding.cross_attention if cross else encoding.attention) or {})[layer][index]
    skip = boundaries(encoding.tokens[index]) if encoding.tokens is not None and not special else ()
    edges = zip(encoding.heads or (), strongest_edges(weights, top=top, skip=skip), strict=True)
    return {head: its_edges for head, its_edges in edges if not encoding.is_pruned(layer, head)}


def as_json(
    encoding: Encoding,
    texts: Sequence[str | None],
    scores: Mapping[str, NDArray[Any]],
    *,
    top: int,
    special: bool,
) -> str:
    """Return a JSON object: format, model, version, sequences, timings_ns.

    Each sequence has text (or null), length, tokens (or null), output_shape [T, D], pooled (numbers, or
    null), logits (null, or label → number, of a classifier of tokens label → a number for each token),
    attention and cross_attention (null, or layer → edges with head, query, key, query_token, key_token,
    weight), and scores (null, or name → layer → a number for each head). Infinite numbers and NaN are null.
    """
    sequences = []
    for index, text in enumerate(texts):
        tokens = None if encoding.tokens is None else encoding.tokens[index]
        attention, cross_attention = (
            None
            if layers is None
            else {
                str(layer): [
                    {
                        "head": head,
                        "query": edge.query,
                        "key": edge.key,
                        "query_token": None if tokens is None else tokens[edge.query],
                        "key_token": None if tokens is None else tokens[edge.key],
                        "weight": _number(edge.weight),
                    }
                    for head, edges in edges_of(
                        encoding, index, layer, top=top, special=special, cross=cross
                    ).items()
                    for edge in edges
                ]
                for layer in layers
            }
            for cross, layers in ((False, encoding.attention), (True, encoding.cross_attention))
        )
        sequences.append(
            {
                "text": text,
                "length": len(encoding.output[index]),
                "tokens": tokens,
                "output_shape": list(encoding.output[index].shape),
                "pooled": None
                if encoding.pooled is None
                else [_number(value) for value in encoding.pooled[index]],
                "logits": None
                if encoding.logits is None or encoding.labels is None
                else {
                    label: [_number(value) for value in column] if column.ndim else _number(column)
                    for label, column in zip(encoding.labels, encoding.logits[index].T, strict=True)
                },
                "attention": attention,
                "cross_attention": cross_attention,
                "scores": {
                    name: {
                        str(layer): [_number(value) for value in row]
                        for layer, row in zip(encoding.scores.layers, values[index], strict=True)
                    }
                    for name, values in scores.items()
                }
                if encoding.scores is not None
                else None,
            }
        )
    timings = {name.removesuffix("_ns"): value for name, value in asdict(encoding.timings).items()}
    return json.dumps(
        {
            "format": JSON_FORMAT,
            "model": encoding.model,
            "version": encoding.version,
            "sequences": sequences,
            "timings_ns": timings,
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
