"""What heads are scored against: which keys each query would attend to if the head did only one thing.

Shape letters: B batch, T tokens, P patterns. Rows are queries, columns are keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POSITIONS = ("previous", "next", "current", "first")
REPETITIONS = ("duplicate", "induction")


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """The weights that turn attention into means over queries.

    A query that sees only one key is left out: it has no choice. A mean over no query is undefined, NaN.
    """

    names: tuple[str, ...]
    pairs: Tensor
    """[B, T, T, P + 1]: 1/n at the keys of a pattern that n queries see; last |q − k| / n, the distance."""
    rows: Tensor
    """[B, T, 2]: 1/n at the queries, and 1 / (n ln m) for a query that sees m keys."""


def pattern_names(*, tokens: bool, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the patterns.

    Args:
        tokens: Whether the encoder takes token ids.
        classes: The names of the classes that its tokens are marked with.
    """
    return (*POSITIONS, *classes, *(REPETITIONS if tokens else ()))


def patterns_of(
    visible: Tensor,
    ids: Tensor | None = None,
    classes: Tensor | None = None,
    *,
    class_names: Sequence[str] = (),
) -> Patterns:
    """Build the patterns of a batch.

    previous, next and current are the keys at offsets −1, +1 and 0, first is the first key (Clark et al.
    2019, "What Does BERT Look At?"). A class is of keys, as Clark's separators and punctuation. duplicate is
    each earlier occurrence of the query's token (TransformerLens, `head_detector`), induction the token after
    each (Olsson et al. 2022, "In-context Learning and Induction Heads", prefix matching).

    Args:
        visible: Boolean [B, T, T], True = the query sees the key; False in padding.
        ids: Token ids [B, T]; None for an encoder of vectors.
        classes: Boolean [B, T, C], True = a token of the class; None = there are no classes.
        class_names: The name of each class.
    """
    size = visible.shape[2]
    seen = visible.sum(2)  # (B, T)
    choosing = seen >= 2
    counted = visible & choosing[:, :, None]
    position = torch.arange(size, device=visible.device)
    offset = position[None, :] - position[:, None]
    wanted = [offset == -1, offset == 1, offset == 0, position == 0]
    if classes is not None:
        wanted += classes[:, None].unbind(3)
    if ids is not None:
        duplicate = (ids[:, :, None] == ids[:, None, :]) & (offset < 0)
        nothing = torch.zeros_like(duplicate[:, :, :1])
        wanted += [duplicate, torch.cat((nothing, duplicate[:, :, :-1]), 2)]
    on_keys = [(each & counted).float() for each in wanted]  # (B, T, T) each
    queries = [each.amax(2).sum(1) for each in on_keys]  # (B,) each
    rows = choosing.float() * _reciprocal(choosing.sum(1, keepdim=True).float())  # (B, T)
    pairs = [each * _reciprocal(count)[:, None, None] for each, count in zip(on_keys, queries, strict=True)]
    pairs.append(offset.abs() * visible.float() * rows[:, :, None])
    return Patterns(
        names=pattern_names(tokens=ids is not None, classes=class_names),
        pairs=torch.stack(pairs, 3),
        rows=torch.stack((rows, rows / seen.clamp(min=2).float().log()), 2),
    )


def _reciprocal(count: Tensor) -> Tensor:
    """Return 1 / count, and NaN for 0."""
    return torch.where(count > 0, 1 / count, torch.nan)
