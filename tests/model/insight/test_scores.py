"""What each score is the share of. Rows are queries, columns are keys."""

from collections.abc import Sequence

import pytest
import torch
from tests.model.insight.plain import norm_weighted as plain_norm_weighted
from tests.model.insight.plain import scores as plain_scores
from tests.model.insight.plain import visible_pairs
from tests.numerics import close
from torch import Tensor

from polyhead_model.insight.patterns import patterns_of
from polyhead_model.insight.scores import RowSums, head_scores, row_sums, score_names
from polyhead_model.masks import causal, valid_tokens

SEPARATOR, PUNCTUATION = 3, 4
CLASSES = ("separator", "punctuation")


def visible(lengths: Sequence[int], tokens: int, *, is_causal: bool = False) -> Tensor:
    valid = valid_tokens(torch.tensor(lengths), tokens)
    seen = valid[:, :, None] & valid[:, None, :]
    return seen & causal(tokens) if is_causal else seen


def both_scores_of(
    attention: Tensor,
    seen: Tensor,
    ids: Tensor | None = None,
    norms: Tensor | None = None,
    logits: Tensor | None = None,
) -> list[dict[str, Tensor]]:
    """Each score [B, H], by name, of the map and of its norm-weighted one."""
    classes = None if ids is None else torch.stack((ids == SEPARATOR, ids == PUNCTUATION), 2)
    names = () if ids is None else CLASSES
    patterns = patterns_of(seen, ids, classes)
    norms = torch.ones_like(attention[..., 0]) if norms is None else norms
    sums = row_sums(attention, norms, patterns, logits)
    both = head_scores(
        RowSums(*(each[:, None] for each in sums)), attention.amax(3)[:, None], patterns.rows[:, None]
    )
    labels = score_names(tokens=ids is not None, classes=names)
    return [dict(zip(labels, scores[:, 0].unbind(2), strict=True)) for scores in both]


@pytest.mark.parametrize("logits_are_known", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_agree_with_plain_loops(is_causal: bool, logits_are_known: bool) -> None:
    """Ragged lengths, repeated tokens, raw and norm-weighted maps."""
    random = torch.Generator().manual_seed(3)
    lengths, size, heads = [9, 6, 2, 1, 0], 9, 3
    seen = visible(lengths, size, is_causal=is_causal)
    ids = torch.randint(2, 7, (len(lengths), size), generator=random)
    logits = 2 * torch.randn(len(lengths), heads, size, size, generator=random)
    logits = logits.masked_fill(~seen[:, None], -3e38)
    raw = logits.softmax(3).masked_fill(~seen[:, None], 0)
    norms = torch.rand(len(lengths), heads, size, generator=random)

    both = both_scores_of(raw, seen, ids, norms, logits if logits_are_known else None)
    for found, weighted in zip(both, (False, True), strict=True):
        for item, length in enumerate(lengths):
            for head in range(heads):
                plain = raw[item, head, :length, :length].double().numpy()
                if weighted:
                    plain = plain_norm_weighted(plain, norms[item, head, :length].tolist())
                expected = plain_scores(
                    plain,
                    visible_pairs(length, causal=is_causal),
                    ids[item].tolist(),
                    {"separator": {SEPARATOR}, "punctuation": {PUNCTUATION}},
                )
                actual = {name: value[item, head].item() for name, value in found.items()}
                assert list(actual) == list(expected)
                for name, value in expected.items():  # shares of 1, entropies up to ln 9, distances up to 8
                    close(actual[name], value, scale=max(abs(value), 1))


def test_a_head_that_moves_nothing_has_no_weighted_attention() -> None:
    attention = torch.full((1, 1, 3, 3), 1 / 3)

    _, weighted = both_scores_of(attention, visible([3], 3), norms=torch.zeros(1, 1, 3))

    assert all(value.item() == 0 for value in weighted.values())
