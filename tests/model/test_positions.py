"""Rotations and relative positions, against what they are defined as."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.numerics import close
from torch import Tensor

from polyhead_model.positions import RelativeBias, rotary_frequencies, rotation_of

HEADS = 2


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
