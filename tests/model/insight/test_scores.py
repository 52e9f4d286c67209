"""What each score is the share of. Rows are queries, columns are keys."""

import math
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


def scores_of(attention: Tensor, seen: Tensor, ids: Tensor | None = None) -> dict[str, Tensor]:
    return both_scores_of(attention, seen, ids)[0]


def of_rows(*keys: int, ids: Sequence[int] | None = None, is_causal: bool = False) -> dict[str, float]:
    """The scores of a head whose query q attends to keys[q] alone."""
    size = len(keys)
    attention = torch.eye(size)[list(keys)][None, None]
    found = scores_of(
        attention, visible([size], size, is_causal=is_causal), None if ids is None else torch.tensor([ids])
    )
    return {name: value.item() for name, value in found.items()}


def test_previous_is_below_the_diagonal() -> None:
    head = of_rows(3, 0, 1, 2)

    assert head["previous"] == pytest.approx(1)
    assert (head["next"], head["current"]) == (0, 0)
    assert head["first"] == pytest.approx(1 / 4)


def test_next_is_above_the_diagonal() -> None:
    head = of_rows(1, 2, 3, 0)

    assert head["next"] == pytest.approx(1)
    assert (head["previous"], head["current"]) == (0, 0)


def test_current_is_the_diagonal() -> None:
    head = of_rows(0, 1, 2, 3, 4)

    assert head["current"] == pytest.approx(1)
    assert (head["previous"], head["next"], head["distance"]) == (0, 0, 0)


def test_first_is_the_first_column() -> None:
    head = of_rows(0, 0, 0, 0)

    assert head["first"] == pytest.approx(1)
    assert head["confidence"] == pytest.approx(1)
    close(head["entropy"], 0, scale=1)
    assert head["distance"] == pytest.approx((0 + 1 + 2 + 3) / 4)


def test_uniform_attention_has_the_largest_entropy() -> None:
    found = scores_of(torch.full((1, 1, 4, 4), 1 / 4), visible([4], 4))

    assert found["entropy"].item() == pytest.approx(math.log(4))
    assert found["normalised_entropy"].item() == pytest.approx(1)
    assert found["confidence"].item() == pytest.approx(1 / 4)


def test_duplicate_is_the_same_token_before() -> None:
    ids = [7, 8, 9, 7, 8, 9]

    assert of_rows(0, 1, 2, 0, 1, 2, ids=ids)["duplicate"] == pytest.approx(1)
    # The token itself, and the same token later on, are no earlier ones.
    assert of_rows(3, 4, 5, 3, 4, 5, ids=ids)["duplicate"] == 0


def test_induction_is_the_token_after_the_same_token_before() -> None:
    ids = [7, 8, 9, 5, 7, 8, 9, 5]

    head = of_rows(0, 0, 0, 0, 1, 2, 3, 4, ids=ids)
    assert head["induction"] == pytest.approx(1)
    assert head["duplicate"] == 0
    # One position off in either direction is none.
    assert of_rows(0, 0, 0, 0, 0, 1, 2, 3, ids=ids)["induction"] == 0
    assert of_rows(0, 0, 0, 0, 2, 3, 4, 5, ids=ids)["induction"] == 0


def test_separators_and_punctuation_are_columns() -> None:
    ids = [2, 7, PUNCTUATION, 8, SEPARATOR, 9, SEPARATOR]

    head = of_rows(4, 4, 6, 6, 2, 2, 0, ids=ids)
    assert head["separator"] == pytest.approx(4 / 7)
    assert head["punctuation"] == pytest.approx(2 / 7)


def test_a_causal_head_has_no_next_and_its_first_token_no_choice() -> None:
    head = of_rows(0, 0, 0, 0, is_causal=True)

    assert math.isnan(head["next"])
    assert head["first"] == pytest.approx(1)
    assert head["distance"] == pytest.approx((1 + 2 + 3) / 3)
    assert of_rows(0, 1, 2, 3, is_causal=True)["current"] == pytest.approx(1)


@pytest.mark.parametrize("ids", [[5, 6, 5, 6], [5, 6, 7, 8]])
def test_what_no_query_sees_is_undefined(ids: Sequence[int]) -> None:
    head = of_rows(0, 1, 2, 3, ids=ids)

    repeated = len(set(ids)) < len(ids)
    assert math.isnan(head["duplicate"]) != repeated
    assert math.isnan(head["induction"]) != repeated
    assert math.isnan(head["punctuation"])


@pytest.mark.parametrize("length", [0, 1])
def test_fewer_than_two_tokens_have_no_score(length: int) -> None:
    attention = torch.zeros(1, 2, 3, 3)
    attention[:, :, :length, :length] = 1

    found = scores_of(attention, visible([length], 3), torch.tensor([[3, 3, 4]]))

    assert all(value.isnan().all() for value in found.values())


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


def test_padding_may_hold_any_attention() -> None:
    attention = torch.zeros(1, 1, 4, 4)
    attention[0, 0, :2, :2] = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    clean = scores_of(attention, visible([2], 4), torch.tensor([[5, 5, 5, 5]]))

    attention[0, 0, 2:] = 7
    dirty = scores_of(attention, visible([2], 4), torch.tensor([[5, 5, 3, 4]]))

    for name, value in clean.items():
        torch.testing.assert_close(dirty[name], value, equal_nan=True)


def test_a_head_that_moves_nothing_has_no_weighted_attention() -> None:
    attention = torch.full((1, 1, 3, 3), 1 / 3)

    _, weighted = both_scores_of(attention, visible([3], 3), norms=torch.zeros(1, 1, 3))

    assert all(value.item() == 0 for value in weighted.values())


def test_an_encoder_of_vectors_has_the_scores_that_need_no_tokens() -> None:
    assert list(of_rows(0, 1, 2)) == [
        "previous",
        "next",
        "current",
        "first",
        "entropy",
        "normalised_entropy",
        "confidence",
        "distance",
    ]
