"""The picture of how a score comes about."""

from typing import Any

import numpy as np
import pytest
from tests.view.encodings import encoding

from polyhead_client import Encoding
from polyhead_view import draw_neurons

QUERIES, KEYS = (np.random.default_rng(seed).normal(size=(2, 4, 9)).astype(np.float32) for seed in (0, 1))


def record(**changes: Any) -> Encoding:
    vectors = {"query_vectors": {5: QUERIES}, "key_vectors": {5: KEYS}}
    return encoding(2, list("abcd"), **vectors | changes)


def test_products_of_neurons_add_up_to_scores() -> None:
    given = record(visible={5: np.broadcast_to(np.tri(4, dtype=bool), (2, 4, 4))})

    figure = draw_neurons(given, head=1, query=-2)

    q, k, products = (np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images)
    np.testing.assert_allclose(q, QUERIES[1, 2:3] * 3, rtol=1e-6)
    np.testing.assert_allclose(k[:3], KEYS[1, :3])
    np.testing.assert_allclose(products[:3], (q * k)[:3], rtol=1e-6)
    scores, weights = (
        axis for axis in figure.axes if axis.get_xlabel() in {"score: sum / √K", "weight: softmax"}
    )
    widths = [bar.get_width() for bar in scores.patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(widths, (QUERIES[1] @ KEYS[1].T)[2, :3], rtol=1e-5)
    assert len(weights.patches) == 3  # masked keys have no bar
    title = " ".join(figure.get_suptitle().split())  # where it breaks depends on the font
    assert title.endswith("how “c” (token 2) scores its keys in head 1 of layer 5")


def test_what_has_no_vectors_is_refused() -> None:
    with pytest.raises(ValueError, match="record must have the vectors of queries and keys"):
        draw_neurons(encoding(2, None), head=0, query=0)
    with pytest.raises(ValueError, match="query must be between -4 and 3, was 4"):
        draw_neurons(record(), head=0, query=4)
    with pytest.raises(ValueError, match=r"head must be one of \[0, 1\], was None"):
        draw_neurons(record(), query=0)
    with pytest.raises(ValueError, match=r"layer must be one of \[5\], was 1"):
        draw_neurons(record(), layer=1, query=0)
