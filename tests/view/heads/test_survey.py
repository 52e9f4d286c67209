"""A corpus through the insight graph."""

from typing import cast

import numpy as np
import pytest
from tests.numerics import close

from polyhead_client import Client, InvalidRequest
from polyhead_view.heads.survey import survey_heads


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


def test_a_long_corpus_goes_in_batches(insight_server: str) -> None:
    done = list[tuple[int, int]]()
    with Client(insight_server) as client:
        texts = ["a b"] * 70 + ["a"] * 70 + ["a b c"]
        found = survey_heads(client, texts, progress=lambda *counts: done.append(counts))

    assert done == [(64, 141), (128, 141), (141, 141)]
    assert (found.texts, found.tokens) == (141, 70 * 4 + 70 * 3 + 5)


def test_an_error_names_the_text_as_the_corpus_counts_it(insight_server: str) -> None:
    texts = ["a b", "a " * 50, "a"]

    with Client(insight_server) as client:
        with pytest.raises(InvalidRequest, match=r"^text\[1\] must be at most 16 tokens, was 52"):
            survey_heads(client, texts)
        assert survey_heads(client, texts, truncate=True).texts == 3


def test_no_text_is_no_corpus() -> None:
    with pytest.raises(InvalidRequest, match="corpus must have a text, was empty"):
        survey_heads(cast(Client, None), [])


def test_what_is_no_list_of_texts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="corpus must be a list of texts, was str"):
        survey_heads(cast(Client, None), "a text")
    with pytest.raises(InvalidRequest, match=r"corpus\[1\] must be a text, was int"):
        survey_heads(cast(Client, None), ["a", 1])  # type: ignore[list-item]
