"""Scores of content and relative positions, against what they are defined as."""

import pytest
import torch
from tests.encoders import draw_all, seeded
from torch import Tensor

from polyhead_model import Encoder, EncoderConfig
from polyhead_model.attention_config import Disentangled
from polyhead_model.disentangled import PositionScores
from polyhead_model.packing import Padded
from polyhead_model.positions import PositionVectors

HEADS, WIDTH = 2, 3
EXACT = 1e-12
"""Both sides compute in float64, and sum three products."""


def number_of(distance: int, *, span: int, reach: int | None) -> int:
    """The row that transformers looks up for a distance from the key to the query."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    if reach is not None:
        found: Tensor = make_log_bucket_position(torch.tensor([distance]), span, reach)
        distance = int(found.long())
    return min(max(distance + span, 0), 2 * span - 1)


@pytest.mark.parametrize(("span", "distance"), [(4, None), (1, None), (8, 20), (2, 9), (256, 512)])
@pytest.mark.parametrize("terms", [("c2p",), ("p2c",), ("p2c", "c2p")])
def test_scores_are_sums_of_products(terms: tuple[str, ...], span: int, distance: int | None) -> None:
    config = Disentangled(terms=terms, span=span, distance=distance)  # type: ignore[arg-type]
    torch.manual_seed(4)
    tokens = 2 * config.reach + 3 if config.reach < 100 else 5
    keys, queries = torch.randn(2, HEADS, 2 * span, WIDTH, dtype=torch.float64)
    vectors = PositionVectors(keys if "c2p" in terms else None, queries if "p2c" in terms else None)
    q, k = torch.randn(2, 2, tokens, HEADS * WIDTH, dtype=torch.float64)

    scores = PositionScores(config, [vectors], tokens, torch.device("cpu"))

    expected = torch.zeros(2, HEADS, tokens, tokens, dtype=torch.float64)
    for head in range(HEADS):
        own = slice(head * WIDTH, (head + 1) * WIDTH)
        for i in range(tokens):
            for j in range(tokens):
                number = number_of(i - j, span=span, reach=distance)
                if vectors.keys is not None:
                    expected[:, head, i, j] += q[:, i, own] @ keys[head, number]
                if vectors.queries is not None:
                    expected[:, head, i, j] += k[:, j, own] @ queries[head, number]
    layout = Padded()
    torch.testing.assert_close(scores.of(0, layout)(q, k, HEADS), expected, rtol=0, atol=EXACT)
    places = torch.stack([torch.randperm(tokens)[:2] for _ in range(2)])  # of each sequence
    some = scores.of_tokens(0, (layout, layout), places)(layout.take(q, places), k, HEADS)
    wanted = torch.stack([own[:, rows] for own, rows in zip(expected, places, strict=True)])
    torch.testing.assert_close(some, wanted, rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("span", "distance"), [(256, 512), (256, 2048), (32, 128), (8, 20), (4, 20), (6, 40)]
)
def test_every_distance_has_the_number_that_transformers_gives(span: int, distance: int) -> None:
    """Also at, and beyond, the distance from which on all have the outermost one."""
    config = Disentangled(terms=("c2p",), span=span, distance=distance)
    tokens = distance + 40
    numbers = torch.arange(2.0 * span)[None, :, None]
    scores = PositionScores(config, [PositionVectors(numbers, None)], tokens, torch.device("cpu"))

    found = scores.of(0, Padded())(torch.ones(1, tokens, 1), torch.ones(1, tokens, 1), 1)[0, 0]

    expected = [number_of(each, span=span, reach=distance) for each in range(tokens)]
    assert found[:, 0].tolist() == expected
    before = [number_of(-each, span=span, reach=distance) for each in range(tokens)]
    assert found[0].tolist() == before
    assert len(set(expected[distance:])) == len(set(before[distance:])) == 1


def test_vectors_of_positions_may_be_given() -> None:
    """As graphs have them: for they are the same in each run."""
    own = Disentangled(terms=("c2p", "p2c"), span=3, shared=True, norm=True)
    config = EncoderConfig(
        d_model=12, heads=HEADS, layers=2, feed_forward=8, disentangled=own, shared_layers=True
    )
    encoder: Encoder = seeded(config, change=draw_all)
    x = torch.randn(2, 7, 12)

    with torch.no_grad():
        vectors = encoder.position_vectors()
        given = encoder(x, position_vectors=vectors).output
        assert len(vectors) == 2
        assert torch.equal(given, encoder(x).output)
        zeros = [
            PositionVectors(*(torch.zeros_like(each) for each in one if each is not None)) for one in vectors
        ]
        assert not torch.allclose(given, encoder(x, position_vectors=zeros).output, atol=1e-2)
    # Shared projections are found in one matrix, too.
    torch.testing.assert_close(encoder.fuse().position_vectors(), vectors, rtol=0, atol=1e-6)
