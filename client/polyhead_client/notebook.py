"""What a notebook shows of a result: one line, or a map of weights as HTML without scripts.

Shape letters: T tokens, H heads.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SHOWN = 32
"""The most tokens on either side of a map."""

_STYLE = "border: 0; padding: 2px 4px; font: 12px sans-serif; text-align: left;"
_UPRIGHT = f"{_STYLE} writing-mode: vertical-rl;"
_COLOUR = "37, 99, 235"
"""Red, green and blue of the largest weight; smaller ones let a light or dark page shine through."""


def html_of(encoding: Any, maps: Iterable[tuple[str, Any]]) -> str:
    """Return the tokens of one sequence, and the weights of the first head that was asked for.

    Args:
        encoding: The `Encoding`.
        maps: Its maps [T, T] by name, of which the first is shown where there are no weights of heads.
    """
    tokens = encoding.tokens
    shown = strip([repr(encoding)]) + (strip(tokens) if tokens else "")
    for name, layers in (
        ("attention", encoding.attention),
        ("attention to the memory", encoding.cross_attention),
    ):
        if layers and encoding.heads:
            layer, weights = next(iter(layers.items()))
            heads = enumerate(encoding.heads)
            at = next((at for at, head in heads if not encoding.is_pruned(layer, head)), 0)
            queries, keys = labels_of(
                weights, tokens, encoding.queries, memory=layers is not encoding.attention
            )
            kind = f"norm-weighted {name}" if encoding.weighted else name
            title = f"Layer {layer}, head {encoding.heads[at]}: {kind}"
            return shown + heat_map(title, finite(weights[at]), list(queries.values()), keys)
    for name, values in maps:
        sides = labels(tokens, len(values))
        return shown + heat_map(name.capitalize(), finite(values), sides, sides)
    return shown


def heat_map(title: str, weights: NDArray[Any], queries: Sequence[str], keys: Sequence[str]) -> str:
    """Return a map of weights as HTML; long sequences are cut, and the title says so.

    Args:
        title: What stands above it.
        weights: [T_query, T_key], not negative.
        queries: The labels of the rows.
        keys: The labels of the columns.
    """
    rows, columns = weights.shape
    if max(rows, columns) > MOST_SHOWN:
        title += f"; the first {MOST_SHOWN} tokens: show() has all"
    most = float(weights.max(initial=0)) or 1.0
    shown = weights[:MOST_SHOWN, :MOST_SHOWN]
    head = "".join(f'<th scope="col" style="{_UPRIGHT}">{escape(key)}</th>' for key in keys[:MOST_SHOWN])
    body = "".join(
        f'<tr><th scope="row" style="{_STYLE}">{escape(query)}</th>'
        + "".join(
            f'<td title="{escape(query)} → {escape(key)}: {weight:.3f}" '
            f'style="min-width: 14px; background-color: rgba({_COLOUR}, {max(weight, 0) / most:.3f})"></td>'
            for key, weight in zip(keys, row, strict=False)
        )
        + "</tr>"
        for query, row in zip(queries, shown, strict=False)
    )
    return (
        f'<p>{escape(title)}. Rows attend to columns; the darkest is {most:.3f}.</p><table style="'
        f'border-collapse: collapse"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def strip(tokens: Sequence[str]) -> str:
    """Return tokens as a line of HTML."""
    shown = " ".join(f"<code>{escape(token)}</code>" for token in tokens[: 4 * MOST_SHOWN])
    return f"<p>{shown}{' …' if len(tokens) > 4 * MOST_SHOWN else ''}</p>"


def labels_of(
    weights: NDArray[Any], tokens: Sequence[Any] | None, queries: Sequence[int] | None, *, memory: bool
) -> tuple[dict[int, str], list[str]]:
    """Return position → label of the queries, and the labels of the keys.

    Args:
        weights: [..., T_query, T_key].
        tokens: Those of the sequence, if there are some.
        queries: The positions of the queries; None means all.
        memory: Whether keys are those of a memory.
    """
    count = weights.shape[-2] if queries is None else max(queries, default=-1) + 1
    named = labels(tokens, count)
    chosen = range(count) if queries is None else queries
    return {at: named[at] for at in chosen}, labels(None if memory else tokens, weights.shape[-1])


def labels(tokens: Sequence[Any] | None, count: int) -> list[str]:
    """Return tokens, or their positions where there are none."""
    return [str(at) for at in range(count)] if not tokens else [str(token) for token in tokens[:count]]


def finite(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights as numbers that can be drawn."""
    return np.nan_to_num(np.asarray(weights, np.float64), nan=0, posinf=0, neginf=0)
