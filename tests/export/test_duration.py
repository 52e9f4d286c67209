"""How long an export is said to take; that it does take so long, no test can assert."""

from dataclasses import replace

import pytest
from tests.encoders import BERT

from polyhead_export.duration import in_words, seconds_of
from polyhead_export.kinds import kinds_of


def test_it_grows_with_graphs_layers_and_parameters() -> None:
    fast, more = kinds_of(BERT), kinds_of(BERT, ["insight"])
    deep = replace(BERT, layers=2 * BERT.layers)
    wide = replace(BERT, d_model=1024, heads=16, feed_forward=4096)
    shared = replace(wide, shared_layers=True)

    assert seconds_of(BERT, fast) < seconds_of(BERT, more) < seconds_of(deep, more)
    assert seconds_of(BERT, fast) + 5 < seconds_of(wide, fast)
    # A layer that is stored once is computed as often.
    assert seconds_of(shared, fast) == pytest.approx(seconds_of(wide, fast), rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "10 s"), (26, "30 s"), (89, "90 s"), (91, "2 min"), (1234, "21 min")]
)
def test_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == f"about {words}"
