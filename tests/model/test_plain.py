"""The page for reading against the modules that are served, which others hold to independent references."""

from pathlib import Path

import pytest
import torch
from tests.numerics import close

from polyhead_model import Encoder, EncoderConfig, masks, plain, scaled_dot_product_attention
from polyhead_model import MultiHeadAttention as Served

T, D, H, K = 7, 24, 4, 6


def mask_of(kind: str) -> torch.Tensor | None:
    return {
        "none": None,
        "causal": masks.causal(T)[0],
        "each sequence's own": masks.key_padding(torch.tensor([T, 3, 1]), T),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "causal", "each sequence's own"])
@pytest.mark.parametrize(
    ("width", "kv_heads"), [(None, None), (K, 4), (2, None), (11, None), (None, 2), (11, 1)]
)
def test_attention_is_that_of_the_served_module(kind: str, width: int | None, kv_heads: int | None) -> None:
    torch.manual_seed(1)
    read = plain.MultiHeadAttention(D, H, width, kv_heads)
    served = Served(D, H, head_width=width, kv_heads=kv_heads)
    served.load_state_dict(read.state_dict())
    x, mask = torch.randn(3, T, D), mask_of(kind)
    output, weights = read(x, mask)
    expected, expected_weights = served(
        x, mask=mask if mask is None or mask.ndim == 3 else mask[None], need_weights=True
    )
    close(output, expected)
    close(weights, expected_weights, scale=1)


@pytest.mark.parametrize("kind", ["none", "causal", "each sequence's own"])
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
def test_the_loop_gives_what_the_batch_gives(kind: str, kv_heads: int | None) -> None:
    torch.manual_seed(2)
    attention, x, mask = plain.MultiHeadAttention(D, H, 5, kv_heads), torch.randn(3, T, D), mask_of(kind)
    for batched, looped in zip(attention(x, mask), attention.by_loop(x, mask), strict=True):
        assert batched.shape == looped.shape
        close(batched, looped)


@pytest.mark.parametrize("lengths", [[T, T], [2, T], [1, 1]])
def test_an_encoder_trained_on_the_page_is_the_one_that_is_exported(lengths: list[int]) -> None:
    torch.manual_seed(3)
    read = plain.Encoder(vocabulary=50, positions=20, d_model=D, heads=H, layers=2, feed_forward=40)
    served = Encoder(
        EncoderConfig(
            vocabulary=50,
            positions=20,
            embedding_norm=True,
            d_model=D,
            heads=H,
            layers=2,
            feed_forward=40,
            layer_norm_epsilon=1e-5,
        )
    )
    served.load_state_dict(read.state_dict())
    ids, given = torch.randint(50, (2, T)), torch.tensor(lengths)
    output, weights = read(ids, masks.key_padding(given, T))
    expected = served(ids, given, need_weights=True)
    valid = masks.valid_tokens(given, T)
    close(output[valid], expected.output[valid])
    for mine, of_layer in zip(weights, expected.attention or (), strict=True):
        # Rows of padding attend here, and are zero there.
        close(mine * valid[:, None, :, None], of_layer, scale=1)


def test_a_row_that_sees_nothing_is_nan_here_and_zero_where_it_is_served() -> None:
    nothing = torch.tensor([[True, True], [False, False]])
    q = k = v = torch.eye(2)
    output, weights = plain.scaled_dot_product_attention(q, k, v, nothing)
    assert output[1].isnan().all()
    assert weights[1].isnan().all()
    served, served_weights = scaled_dot_product_attention(q, k, v, nothing)
    assert not served[1].any()
    assert not served_weights[1].any()
    close(output[0], served[0])


def test_it_is_a_page() -> None:
    """docs/README.md says how many lines."""
    assert len(Path(plain.__file__).read_text().splitlines()) <= 120
