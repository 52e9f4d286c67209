"""What can be drawn: encodings, what was recorded, and arrays of anybody's weights, in one form.

Shape letters: T queries, S keys, H heads, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead_client import Encoding, Timings

BATCH = "encoding must be of one sequence, was of a batch: choose one, encoding.sequence(0)"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMaps:
    """The maps of one layer's heads."""

    layer: int
    weights: NDArray[Any]
    """[H, T, S]."""
    visible: NDArray[np.bool_] | None
    """[H, T, S], where the mask lets the query see the key; None means everywhere."""
    heads: Sequence[int]
    """The numbers of the heads."""
    pruned: frozenset[int]
    """Those of heads that pruning took."""
    queries: list[str]
    """The labels of the rows."""
    keys: list[str]
    """Those of the columns."""
    source: str
    """Who computed it; empty for an array."""
    weighted: bool
    place: str
    """Which layer it is, such as " of layer 5"; empty for an array of one layer."""

    def of_head(self, head: int | None) -> "LayerMaps":
        """Return the map of one head; None means the only one.

        Raises:
            ValueError: There is no such head.
        """
        left = [number for number in self.heads if number not in self.pruned]
        if head is None and len(left) == 1:
            head = left[0]
        if head not in left:
            raise ValueError(f"head must be one of {left}, was {head}")
        at = list(self.heads).index(head)
        values = {**vars(self), "weights": self.weights[at : at + 1], "heads": [head]}
        if self.visible is not None:
            values["visible"] = self.visible[at : at + 1]
        return LayerMaps(**values)


def encoding_of(attention: Encoding | ArrayLike, tokens: Sequence[str] | None = None) -> Encoding:
    """Return weights as an encoding.

    Args:
        attention: An encoding or a record, or an array or tensor of weights [T, S], [H, T, S] or
            [L, H, T, S]; or the weights of each layer, [H, T, S] or [1, H, T, S], as a list. NaN and -inf
            are masked.
        tokens: The labels of the queries; None means those of the encoding.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(attention, Encoding):
        return attention
    weights = as_array(attention)
    if weights.ndim == 5 and weights.shape[1] == 1:
        weights = weights[:, 0]  # each layer's weights of a batch of one
    if weights.dtype.kind not in "fiub" or not 2 <= weights.ndim <= 4 or not weights.size:
        raise ValueError(
            "attention must be an Encoding, or weights [T, S], [H, T, S] or [L, H, T, S] of one sequence, "
            f"was {weights.dtype} {list(weights.shape)}"
        )
    layers = weights.reshape(-1, *weights.shape[-3:]) if weights.ndim > 2 else weights[None, None]
    hidden = ~np.isfinite(layers)
    if (layers < 0).any(where=~hidden):
        raise ValueError(
            f"attention must be weights after the softmax, 0 or more, was {layers[~hidden].min():.3g}"
        )
    shown = np.where(hidden, 0, layers).astype(np.float32)
    return Encoding(
        model="",
        version="",
        output=None,
        pooled=None,
        attention=dict(enumerate(shown)),
        visible=dict(enumerate(~hidden)) if hidden.any() else None,
        heads=tuple(range(layers.shape[1])),
        queries=None,
        tokens=None if tokens is None else list(map(str, tokens)),
        lengths=layers.shape[2],
        timings=Timings(total_ns=0),
    )


def as_array(values: Any) -> NDArray[Any]:
    """Return an array, a tensor of any device and gradient, or a list of them, as an array.

    Raises:
        ValueError: Parts of a list have several shapes or lengths.
    """
    if isinstance(values, list | tuple) and values and hasattr(values[0], "shape"):
        parts = [as_array(each) for each in values]
        if len(shapes := {each.shape for each in parts}) > 1:
            raise ValueError(f"layers must have one shape, had {' and '.join(map(str, map(list, shapes)))}")
        return np.stack(parts)
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError("arrays must have parts of one length each, were ragged lists") from error


def maps_of(
    attention: Encoding | ArrayLike,
    layer: int | None,
    *,
    cross: bool = False,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    mask: ArrayLike | None = None,
) -> LayerMaps:
    """Return the maps of a layer.

    Args:
        attention: See `encoding_of`.
        layer: The number of the layer; None means the only one.
        cross: Whether they are of the attention of a decoder block to its memory.
        tokens: The labels of all queries, and of the keys; None means the tokens, or their positions.
        key_tokens: The labels of the keys, where they are those of another sequence.
        mask: Boolean [T, S] or [H, T, S], True = may attend; None means what is known of `attention`.

    Raises:
        ValueError: There is no such layer, it is of a batch, or labels or mask do not fit.
    """
    encoding = encoding_of(attention, tokens)
    layers = encoding.cross_attention if cross else encoding.attention
    if layer is None and len(layers) == 1:
        layer = next(iter(layers))
    if layer is None or layer not in layers:
        raise ValueError(f"layer must be one of {list(layers)}, was {layer}")
    weights = layers[layer]
    if not isinstance(weights, np.ndarray) or weights.ndim != 3:
        raise ValueError(BATCH)
    if not weights.size:
        raise ValueError(f"attention must be of one token or more, was {list(weights.shape)}")
    known = None if encoding.visible is None or cross else encoding.visible[layer]
    if mask is not None:
        known = _checked(as_array(mask), weights.shape)
    heads = encoding.heads or range(len(weights))
    is_array = not encoding.model and len(layers) == 1
    queries, keys = _labels(encoding, weights.shape, tokens, key_tokens)
    return LayerMaps(
        layer=layer,
        weights=weights,
        visible=_without_padding(encoding, weights.shape, known),
        heads=heads,
        pruned=frozenset(head for head in heads if encoding.is_pruned(layer, head)),
        queries=queries,
        keys=keys,
        source=encoding.source,
        weighted=encoding.weighted,
        place="" if is_array else f" of layer {layer}",
    )


def _checked(mask: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if mask.dtype != bool or mask.shape not in {shape, shape[1:], (1, *shape[1:])}:
        raise ValueError(
            f"mask must be Boolean {list(shape[1:])} or {list(shape)}, True = may attend, was {mask.dtype} "
            f"{list(mask.shape)}"
        )
    return np.broadcast_to(mask, shape)


def _without_padding(
    encoding: Encoding, shape: tuple[int, ...], known: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    """Return what is visible, where an array keeps the padding of its sequence, too."""
    length: Any = encoding.lengths
    _, rows, columns = shape
    if columns <= length or (encoding.queries is None and rows != columns):
        return known
    exist = np.arange(columns) < length
    positions = np.arange(rows) if encoding.queries is None else np.array(encoding.queries)
    visible = exist & exist[positions][:, None]
    return np.broadcast_to(visible if known is None else visible & known, shape)


def _labels(
    encoding: Encoding,
    shape: tuple[int, ...],
    tokens: Sequence[str] | None,
    key_tokens: Sequence[str] | None,
) -> tuple[list[str], list[str]]:
    """Return the labels of the queries and of the keys."""
    _, rows, columns = shape
    chosen = range(rows) if encoding.queries is None else encoding.queries
    count = max(chosen, default=-1) + 1
    own: Any = encoding.tokens  # of one sequence
    if tokens is not None and (len(tokens) < count or (encoding.queries is None and len(tokens) > count)):
        raise ValueError(f"tokens must be {count}, one for each query, were {len(tokens)}")
    if key_tokens is not None and len(key_tokens) != columns:
        raise ValueError(f"key_tokens must be {columns}, one for each key, were {len(key_tokens)}")
    queries = named(own if tokens is None else tokens, count)
    keys = key_tokens
    if keys is None and (both := own if tokens is None else tokens) and len(both) == columns:
        keys = both
    return [queries[at] for at in chosen], named(keys, columns)


def named(tokens: Sequence[str] | None, count: int) -> list[str]:
    """Return tokens as labels, or their positions where there are none."""
    return list(map(str, tokens)) if tokens else [str(at) for at in range(count)]
