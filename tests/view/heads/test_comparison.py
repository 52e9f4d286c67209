"""Two families over one corpus."""

import numpy as np
import pytest
from tests.numerics import close
from tests.view.heads.surveys import HEADS, SCORES, MadeClient, scores

from polyhead_client import InvalidRequest, NotFound
from polyhead_view import HeadComparison, compare_heads
from polyhead_view.heads.comparison import (
    common_means,
    largest_differences,
    most_alike_in_other,
    role_changes,
    same_numbers,
)

TEXTS = ["a b", "a b c d e", "a b c", "a"]


def compared(client: MadeClient, model: str = "made", against: str = "other") -> HeadComparison:
    return compare_heads(client.as_client(), TEXTS, model=model, against=against)


def test_differences_are_those_of_each_text() -> None:
    found = compared(MadeClient({"made": HEADS, "other": HEADS}))

    of = found.raw.scores
    assert of is not None
    lengths = [len(text) for text in TEXTS]
    close(of.mean[1, 1, 1], np.mean(lengths) / 200)
    close(of.standard_error[1, 1, 1], np.std(lengths, ddof=1) / 200 / np.sqrt(len(TEXTS)))
    close(of.mean[0, 0, 0], -0.3)
    assert of.standard_error[0, 0, 0] == pytest.approx(0, abs=1e-6), "what varies in both alike is left out"
    assert (of.texts[0, 0, 3], of.texts[0, 0, 0]) == (1, 4)
    spread = np.std([scores(text)[0, 1, 1, 1] for text in TEXTS], ddof=1)
    assert found.a.raw.scores.sd[1, 1, 1] == pytest.approx(spread, rel=1e-5)
    weighted = found.weighted.scores
    assert weighted is not None
    close(weighted.mean[0, 0, 0], -0.15)


def test_roles_are_lost_and_gained() -> None:
    client = MadeClient({"made": HEADS, "other": HEADS, "third": HEADS})
    kinds = compared(client).kinds

    assert role_changes(compared(client), kinds[0]) == []
    back = compared(client, "third", "made")
    assert role_changes(back, back.kinds[0]) == [(0, 0, (), ("previous token",))]
    forth = compared(client, "made", "third")
    assert role_changes(forth, forth.kinds[0]) == [(0, 0, ("previous token",), ())]


def test_the_largest_differences_come_first_and_what_is_the_same_not_at_all() -> None:
    found = compared(MadeClient({"made": HEADS, "other": HEADS}))

    (first, second) = list(largest_differences(found, found.kinds[0]))

    assert (first.layer, first.head, first.score) == (0, 0, "previous")
    assert (second.layer, second.head, second.score) == (2, 1, "next")
    assert first.b - first.a == pytest.approx(first.difference)


def test_maps_are_compared_with_those_of_every_head() -> None:
    found = compared(MadeClient({"made": HEADS, "other": HEADS}))
    correlation = found.raw.correlation
    assert correlation is not None

    assert correlation.texts == len(TEXTS)
    alike = most_alike_in_other(correlation)
    assert [each and each[0] for each in alike[:3]] == [1, 2, 0], "each has the map of that before it"
    assert [each and round(each[1], 2) for each in alike[:3]] == [1, 1, 1]
    assert same_numbers(correlation).shape == (6,)
    assert (same_numbers(correlation)[:3] < 0.9).all()


def test_other_numbers_of_heads_are_compared_by_roles_and_maps() -> None:
    found = compared(MadeClient({"made": HEADS, "small": 2}), "made", "small")

    assert not found.same_heads
    assert found.raw.scores is None
    assert list(largest_differences(found, found.kinds[0])) == []
    assert found.raw.correlation is not None
    assert found.raw.correlation.correlation.shape == (2 * HEADS, 2 * 2)


def test_scores_that_one_family_lacks_are_left_out() -> None:
    client = MadeClient({"made": HEADS, "other": HEADS}, names={"other": SCORES[:2]})
    found = compared(client)

    assert found.scores == SCORES[:2]
    assert [each.shape[-1] for each in common_means(found, found.kinds[0])] == [2, 2]
    client.names["made"] = ("entropy",)
    with pytest.raises(InvalidRequest, match="must have a score in common"):
        compared(client)


def test_texts_that_become_other_tokens_have_no_maps_in_common() -> None:
    client = MadeClient({"made": HEADS, "other": HEADS})
    calls: list[str] = []

    def in_turn(text: str) -> list[str]:
        calls.append(text)
        return text.split() if len(calls) <= len(TEXTS) else [text]

    client.tokens = in_turn  # type: ignore[assignment]

    found = compared(client)

    correlation = found.raw.correlation
    assert correlation is not None
    assert correlation.texts == 1, "of a single word"


def test_versions_of_a_family_are_compared_but_none_with_itself() -> None:
    client = MadeClient({"made": HEADS})
    found = compare_heads(client.as_client(), TEXTS, model="made", against="made", against_version=2)

    assert (found.a.version, found.b.version) == ("1", "2")
    assert [found.name_of(survey) for survey in (found.a, found.b)] == ["version 1", "version 2"]
    with pytest.raises(InvalidRequest, match="must be another family or version, was made, version 1, too"):
        compared(client, "made", "made")
    with pytest.raises(NotFound):
        compared(client, "made", "gone")
