"""Documents that were compared with a query."""

import numpy as np

from polyhead_client import Encoding
from polyhead_client.encoding import Timings
from polyhead_client.late import matched


def test_a_document_without_a_token_to_compare_matches_nothing() -> None:
    """The server gives it 0, and -1 for each of its tokens."""
    encoding = Encoding(
        model="late.maxsim",
        version="1",
        output=None,
        pooled=None,
        heads=None,
        queries=None,
        tokens=[["!", "?"], ["a", "!"]],
        lengths=np.array([2, 2]),
        timings=Timings(total_ns=1),
        max_similarities=np.array([[0, 0], [0.5, -0.25]], np.float32),
        similarities=[np.full((2, 2), -1.0), np.array([[0.5, -1], [-0.25, -1]])],
    )

    best, other = matched(["!?", "a!"], encoding, ["b", "c"], top=None)

    assert (best.text, best.score) == ("a!", 0.25)
    assert [(match.index, match.similarity) for match in best.matches or ()] == [(0, 0.5), (0, -0.25)]
    assert (other.score, other.matches) == (0, ())
