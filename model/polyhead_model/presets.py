"""Named encoder configurations."""

from collections.abc import Mapping
from types import MappingProxyType

from polyhead_model.config import EncoderConfig


def _bert(*, d_model: int, heads: int, layers: int) -> EncoderConfig:
    """Return blocks as in BERT: norm after the residual, exact GELU, bidirectional attention."""
    return EncoderConfig(d_model=d_model, heads=heads, layers=layers, feed_forward=4 * d_model)


def _gpt2(*, d_model: int, heads: int, layers: int) -> EncoderConfig:
    """Return blocks as in GPT-2: norm before the sub-layer, GELU's tanh approximation, causal."""
    return EncoderConfig(
        d_model=d_model,
        heads=heads,
        layers=layers,
        feed_forward=4 * d_model,
        norm="pre",
        final_norm=True,
        activation="gelu_tanh",
        causal=True,
        layer_norm_epsilon=1e-5,
    )


PRESETS: Mapping[str, EncoderConfig] = MappingProxyType(
    {
        "bert-base": _bert(d_model=768, heads=12, layers=12),
        "bert-large": _bert(d_model=1024, heads=16, layers=24),
        "gpt2": _gpt2(d_model=768, heads=12, layers=12),
        "gpt2-medium": _gpt2(d_model=1024, heads=16, layers=24),
        "minilm": _bert(d_model=384, heads=12, layers=6),
        # Single attention layers, because they are large: 42 to 604 million parameters. The two
        # of them with 8 key and value heads have grouped queries.
        "llama-7b": EncoderConfig(d_model=4096, heads=32, layers=1, head_width=128, bias=False, causal=True),
        "llama-2-70b": EncoderConfig(
            d_model=8192, heads=64, kv_heads=8, layers=1, head_width=128, bias=False, causal=True
        ),
        "mistral-7b": EncoderConfig(
            d_model=4096, heads=32, kv_heads=8, layers=1, head_width=128, bias=False, causal=True
        ),
        "gpt3": EncoderConfig(d_model=12288, heads=96, layers=1, head_width=128, causal=True),
        # Layers that attend to a second sequence: a transformer's decoder block, and attention alone.
        "decoder-block": EncoderConfig(
            d_model=768, heads=12, layers=1, feed_forward=3072, causal=True, cross_attention="after_self"
        ),
        "cross": EncoderConfig(d_model=768, heads=12, layers=1, cross_attention="alone"),
        "teaching": EncoderConfig(d_model=256, heads=4, layers=2),
    }
)
"""Named configurations, all of vectors [B, T, D]. Weights are random: use them for trials and benchmarks.

For trained weights, load a checkpoint, see `polyhead_model.load_checkpoint`.
"""
