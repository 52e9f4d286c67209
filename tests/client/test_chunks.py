"""Late chunking: vectors of parts of a text are means of the rows of their tokens."""

from typing import Any

import numpy as np
import pytest
from tests.client.conftest import Connect, FakeServer
from tests.pages import block

from polyhead_client import Client, InvalidRequest

TEXT = "The  cat sat. A big mat, sofas!"


@pytest.fixture
def client(connect: Connect, real_server: str) -> Client:
    return connect(real_server)


def mean_of(client: Client, text: str, start: int, end: int) -> Any:
    """The same, token by token, in float64."""
    encoding: Any = client.encode(text, model="tiny-tokens", spans=True)
    total, count = np.zeros(16), 0
    for row, (first, last, word) in zip(encoding.output, encoding.spans, strict=True):
        if word >= 0 and any(start <= at < end for at in range(first, last)):
            total, count = total + row, count + 1
    return total / count / np.linalg.norm(total / count)


def test_a_span_has_the_mean_of_its_tokens(client: Client) -> None:
    """Apart, overlapping, in the midst of a word, and all of the text; a token at an edge is of both."""
    spans = [(0, 13), (14, 31), (5, 17), (6, 7), (0, 31), (25, 26)]

    vectors = client.chunks(TEXT, spans, model="tiny-tokens")

    assert vectors.shape == (6, 16)
    for vector, (start, end) in zip(vectors, spans, strict=True):
        np.testing.assert_allclose(vector, mean_of(client, TEXT, start, end), rtol=0, atol=1e-6)
    of_an_array: Any = client.chunks(TEXT, np.array(spans[:2]), model="tiny-tokens")  # type: ignore[arg-type]
    np.testing.assert_allclose(of_an_array, vectors[:2], rtol=0, atol=1e-6)
    assert client.chunks(TEXT, [], model="tiny-tokens").shape == (0, 16)


def test_a_vector_depends_on_the_rest_of_the_text(client: Client) -> None:
    (alone,) = client.chunks("A big mat", [(0, 9)], model="tiny-tokens")
    (within,) = client.chunks(TEXT, [(14, 23)], model="tiny-tokens")

    assert np.abs(alone - within).max() > 1e-3


def test_prompts_are_no_part_of_the_text(client: Client) -> None:
    arguments: Any = {"model": "tiny-tokens", "prompt_name": "query"}
    encoding: Any = client.encode("cat sat", **arguments)

    (vector,) = client.chunks("cat sat", [(0, 7)], **arguments)

    assert encoding.tokens[1:3] == ["the", "big"]
    expected = encoding.output[3:-1].mean(0)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=0, atol=1e-6)


def test_what_is_cut_off_counts_for_nothing(client: Client) -> None:
    long = "the cat sat on " * 5
    arguments: Any = {"model": "tiny-tokens", "truncate": True}

    with pytest.raises(
        InvalidRequest,
        match=r"at most 16 tokens, was .* or give truncate=True \(polyhead infer: --truncate\)",
    ):
        client.chunks(long, [(0, 70)], model="tiny-tokens")
    with pytest.raises(InvalidRequest, match=r"spans\[1\] must have a token, 'sat' has none, or was cut off"):
        client.chunks(long, [(0, 70), (68, 71)], **arguments)
    whole, left = client.chunks(long, [(0, 70), (0, 52)], **arguments)

    np.testing.assert_array_equal(whole, left)


def test_the_page_shows_what_works(client: Client) -> None:
    names: dict[str, Any] = {"client": client}
    exec(block("docs/client.md", "client.chunks").replace('"minilm"', '"tiny-tokens"'), names)

    assert names["vectors"].shape == (2, 16)


@pytest.mark.parametrize(
    ("text", "spans", "named"),
    [
        (["a"], [(0, 1)], "text must be one text, was"),
        (TEXT, [(0, 1), (3, 32)], r"spans\[1\] must be characters of the text, .* <= 31, was \(3, 32\)"),
        (TEXT, [(-1, 3)], r"spans\[0\] must be characters of the text"),
        (TEXT, [(3, 3)], r"spans\[0\] must be characters of the text, 0 <= start < end"),
        (TEXT, [(0, 1), (3, 5)], r"spans\[1\] must have a token, '  ' has none"),
        (TEXT, [(0, 1), 5], r"spans must be pairs of integers \(start, end\), spans\[1\] was not"),
        (TEXT, [(0, 1.5)], r"spans must be pairs of integers"),
        (TEXT, 5, r"spans must be pairs of integers"),
    ],
)
def test_what_is_no_span_is_refused_by_name(client: Client, text: Any, spans: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        client.chunks(text, spans, model="tiny-tokens")


def test_families_that_pool_in_another_way_are_refused(connect: Connect, fake: FakeServer) -> None:
    fake.properties = {"pooling": "cls"}

    with pytest.raises(InvalidRequest, match=r"model must pool by the mean, or not at all, .* pools by cls"):
        connect(fake.target).chunks("a cat", [(0, 1)], model="words")
