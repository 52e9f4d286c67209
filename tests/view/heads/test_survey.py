"""A corpus through the insight graph."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from tests.numerics import close
from tests.view.heads.surveys import (
    HEADS,
    LAYERS,
    SCORES,
    SIDE,
    InsightClient,
    attention,
    norms,
    scores,
    survey,
)

from polyhead_client import Client, InvalidRequest
from polyhead_view.heads.survey import head_name, survey_heads

if TYPE_CHECKING:
    from tests.client.conftest import FakeServer

TEXTS = ["a b", "a b c d e", "a b c", "a", "a b c d e f g h i j"]


def test_every_text_counts_once() -> None:
    found = survey(TEXTS)

    expected = np.stack([scores(text) for text in TEXTS]).astype(np.float64)
    assert (found.model, found.version, found.layers, found.scores) == ("made", "1", LAYERS, SCORES)
    assert (found.texts, found.tokens, found.heads) == (5, 31, HEADS)
    close(found.raw.scores.mean[..., :3], expected[..., :3].mean(0))
    close(found.raw.scores.sd[..., :3], expected[..., :3].std(0, ddof=1), scale=1)
    close(found.weighted.scores.mean, found.raw.scores.mean / 2)
    assert (found.raw.scores.texts[..., 3] == 2).all(), "two texts have this score"


def test_maps_are_compared_where_thumbnails_show_every_token() -> None:
    found: Any = survey(TEXTS)

    lengths = [length for text in TEXTS if (length := len(text.split()) + 2) <= SIDE]
    assert found.raw.redundancy.texts == found.weighted.redundancy.texts == len(lengths) == 4
    exact = np.mean([np.corrcoef(attention(n).reshape(len(LAYERS) * HEADS, -1)) for n in lengths], 0)
    np.testing.assert_allclose(found.raw.redundancy.correlation, exact, atol=0.01)
    weighted = [attention(n) * norms(n)[:, :, None] for n in lengths]
    exact = np.mean([np.corrcoef(maps.reshape(len(LAYERS) * HEADS, -1)) for maps in weighted], 0)
    np.testing.assert_allclose(found.weighted.redundancy.correlation, exact, atol=0.01)
    assert found.raw.redundancy.correlation[4, 5] == pytest.approx(1, abs=1e-3)
    assert head_name(found, 4) == "2.1"


def test_the_insight_graph_gives_what_its_attention_gives(insight_server: str) -> None:
    """Against all weights, which the attention graph returns."""
    texts = [
        "the cat sat on the mat .",
        "a big dog ran !",
        "i saw that , yesterday",
        "the the cat cat",
        "dog",
    ]
    with Client(insight_server) as client:
        found = survey_heads(client, texts)
        encodings = [client.encode(text, attention=True, value_norms=True) for text in texts]

    raw, weighted, previous = [], [], []
    for encoding in encodings:
        assert encoding.attention is not None
        assert encoding.value_norms is not None
        maps = np.stack(list(encoding.attention.values())).astype(np.float64)
        previous.append(maps.diagonal(-1, 2, 3).mean(-1))
        norms_of_text = np.stack(list(encoding.value_norms.values()))
        raw.append(np.corrcoef(maps.reshape(found.heads * len(maps), -1)))
        maps = maps * norms_of_text[:, :, None]
        weighted.append(np.corrcoef(maps.reshape(found.heads * len(maps), -1)))
    assert (found.model, found.texts) == ("probed", len(texts))
    assert found.tokens == sum(len(encoding.tokens or ()) for encoding in encodings)
    at = found.scores.index("previous")
    close(found.raw.scores.mean[..., at], np.mean(previous, 0), scale=1)
    close(found.raw.scores.sd[..., at], np.std(previous, 0, ddof=1), scale=1)
    for kind, exact in ((found.raw, raw), (found.weighted, weighted)):
        assert kind.redundancy is not None
        np.testing.assert_allclose(kind.redundancy.correlation, np.mean(exact, 0), atol=0.02)


def test_without_a_short_text_redundancy_is_not_known() -> None:
    found = survey(["a b c d e f g h i"])

    assert found.raw.redundancy is found.weighted.redundancy is None
    assert np.isnan(found.raw.scores.sd).all(), "one text has no spread"


def test_a_long_corpus_goes_in_batches_of_like_lengths() -> None:
    client, done = InsightClient(), list[tuple[int, int]]()
    texts = ["a b"] * 70 + ["a"] * 70 + ["a b c"]

    found = survey_heads(cast(Client, client), texts, progress=lambda *counts: done.append(counts))

    assert [len(batch) for batch in client.batches] == [64, 64, 13]
    assert set(client.batches[0]) == {"a"}
    assert done == [(64, 141), (128, 141), (141, 141)]
    assert found.texts == 141


def test_an_error_names_the_text_as_the_corpus_counts_it() -> None:
    texts = ["a b", "a " * 50, "a"]

    with pytest.raises(InvalidRequest, match=r"^text\[1\] must be at most 40 tokens, was 52"):
        survey(texts)
    assert survey(texts, truncate=True).texts == 3


def test_no_text_is_no_corpus() -> None:
    with pytest.raises(InvalidRequest, match="corpus must have a text, was empty"):
        survey([])


def test_what_is_no_list_of_texts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="corpus must be a list of texts, was str"):
        survey_heads(cast(Client, None), "a text")
    with pytest.raises(InvalidRequest, match=r"corpus\[1\] must be a text, was int"):
        survey_heads(cast(Client, None), ["a", 1])  # type: ignore[list-item]


def test_a_family_without_an_insight_graph_is_refused(fake: "FakeServer") -> None:
    with Client(fake.target) as client, pytest.raises(InvalidRequest, match="words has no graph"):
        survey_heads(client, ["a"], model="words")
