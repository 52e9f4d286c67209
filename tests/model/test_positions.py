"""Rotations and relative positions, against what they are defined as."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.numerics import close
from torch import Tensor

from polyhead_model.positions import RelativeBias, rotary_frequencies, rotate, rotation_of

HEADS, WIDTH, TOKENS = 2, 6, 40


def test_products_of_rotated_vectors_depend_on_their_distance_only() -> None:
    """Each pair of columns (i, i + K/2) is a complex number that is turned by its position's angle."""
    torch.manual_seed(31)
    q, k = torch.randn(2, 1, 1, HEADS * WIDTH)
    rotation = rotation_of(rotary_frequencies(50.0, WIDTH), TOKENS, device=torch.device("cpu"))
    queries, keys = (
        rotate(x.expand(1, TOKENS, -1), HEADS, rotation).reshape(TOKENS, HEADS, WIDTH) for x in (q, k)
    )

    products = torch.einsum("thk,shk->hts", queries, keys).numpy()

    halves = [x.reshape(HEADS, 2, WIDTH // 2).numpy() for x in (q, k)]
    turned_q, turned_k = (each[:, 0] + 1j * each[:, 1] for each in halves)
    distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None, :]
    angles = distance[..., None] * 50.0 ** (-2 * np.arange(WIDTH // 2) / WIDTH)
    expected = np.einsum("hi,hi,tsi->hts", turned_q, turned_k.conj(), np.exp(1j * angles)).real
    close(products, expected)
    close(queries[0].flatten(), q.flatten())  # position 0 is not turned


def test_angles_of_long_sequences_keep_their_digits() -> None:
    cosines, sines = rotation_of(rotary_frequencies(160_000.0, 64), 8192, device=torch.device("cpu"))

    angles = 8191 * 160_000.0 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(cosines[-1, :32], np.cos(angles), atol=1e-3)
    np.testing.assert_allclose(sines[-1], np.concatenate([-np.sin(angles), np.sin(angles)]), atol=1e-3)


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 6), (4, 2), (10, 50)])
def test_relative_positions_share_buckets_as_in_t5(buckets: int, distance: int) -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    torch.manual_seed(32)
    relative = RelativeBias(HEADS, buckets=buckets, distance=distance)
    tokens = 2 * distance + 3

    bias = relative(tokens)

    position = torch.arange(tokens)
    bucket_of: Callable[..., Tensor] = MPNetEncoder.relative_position_bucket
    offset = position[None, :] - position[:, None]
    theirs = bucket_of(offset, num_buckets=buckets, max_distance=distance)
    torch.testing.assert_close(bias, relative.table(theirs).permute(2, 0, 1)[None], rtol=0, atol=0)
    assert set(theirs.flatten().tolist()) == set(relative.buckets)
    close(relative(1), bias[:, :, :1, :1])
