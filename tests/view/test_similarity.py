"""The split of a cosine over pairs of tokens."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.numerics import TRAINED, close

from polyhead_client import Client, InvalidRequest
from polyhead_view import draw_similarity, explain_similarity

if TYPE_CHECKING:
    from tests.client.conftest import FakeServer

A, B = "the cat sat on the mat .", "a big dog ran !"


@pytest.fixture
def client(real_server: str) -> Iterator[Client]:
    with Client(real_server) as client:
        yield client


def test_contributions_are_of_two_rows_and_sum_to_the_cosine(client: Client) -> None:
    explained = explain_similarity(client, A, B, model="tiny-tokens")

    result: Any = client.encode([A, B], model="tiny-tokens")
    a, b = result.output
    close(explained.value, result.pooled[0] @ result.pooled[1], scale=1)
    close(explained.contributions.sum(), explained.value, scale=1)
    assert explained.tokens == (["[CLS]", *A.split(), "[SEP]"], ["[CLS]", *B.split(), "[SEP]"])
    assert explained.contributions.shape == (len(a), len(b))
    scale = len(a) * len(b) * np.linalg.norm(a.mean(0)) * np.linalg.norm(b.mean(0))
    close(explained.contributions[3, 1], a[3] @ b[1] / scale, scale=1)


def test_long_texts_are_truncated_on_request(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"text\[1\] must be at most 16 tokens, was 22"):
        explain_similarity(client, A, "the cat " * 10, model="tiny-tokens")

    explained = explain_similarity(client, A, "the cat " * 10, model="tiny-tokens", truncate=True)

    assert len(explained.tokens[1]) == 16


@pytest.mark.parametrize(("pooling", "way"), [("cls", "words pools by cls"), ("", "words does not pool")])
def test_other_ways_of_pooling_are_refused(fake: "FakeServer", pooling: str, way: str) -> None:
    fake.properties["pooling"] = pooling

    with Client(fake.target) as client, pytest.raises(InvalidRequest, match=f"pools by the mean; {way}"):
        explain_similarity(client, "a cat", "a dog", model="words")


@pytest.mark.parametrize("a", ["", "$x$ <b>猫</b>"])
def test_any_text_can_be_compared_and_drawn(client: Client, a: str) -> None:
    explained = explain_similarity(client, a, "the cat", model="tiny-tokens")

    close(explained.contributions.sum(), explained.value, scale=1)
    draw_similarity(explained)


def test_the_picture_has_every_pair_and_the_sums_of_tokens(client: Client) -> None:
    explained = explain_similarity(client, A, B, model="tiny-tokens")

    figure = draw_similarity(explained)

    (pairs,) = (axes for axes in figure.axes if axes.images)
    image: Any = pairs.images[0]
    np.testing.assert_array_equal(image.get_array(), explained.contributions)
    assert image.norm.vmin == -image.norm.vmax == -np.abs(explained.contributions).max()
    assert [text.get_text() for text in pairs.get_yticklabels()] == explained.tokens[0]
    assert [text.get_text() for text in pairs.get_xticklabels()] == explained.tokens[1]
    heights = [patch.get_height() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(heights, explained.contributions.sum(0))
    assert f"cosine {explained.value:.3f}" in figure.get_suptitle()


def test_minilm_s_cosine_is_split_exactly(minilm_address: str) -> None:
    a, b = "A man is eating a piece of bread.", "Someone is having a meal."
    with Client(minilm_address) as client:
        explained = explain_similarity(client, a, b)

    best = next(explained.pairs())
    close(explained.contributions.sum(), explained.value, roundings=TRAINED, scale=1)
    assert (explained.tokens[0][best.a], explained.tokens[1][best.b]) == ("eating", "meal")
