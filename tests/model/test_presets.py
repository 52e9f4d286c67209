"""Presets have the sizes that they are named after."""

import pytest

from polyhead_model import PRESETS, parameters


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert-base", (768, 12, 64, 12)),
        ("bert-large", (1024, 16, 64, 24)),
        ("gpt2", (768, 12, 64, 12)),
        ("gpt2-medium", (1024, 16, 64, 24)),
        ("minilm", (384, 12, 32, 6)),
        ("llama-7b", (4096, 32, 128, 1)),
        ("gpt3", (12288, 96, 128, 1)),
        ("teaching", (256, 4, 64, 2)),
    ],
)
def test_sizes(name: str, sizes: tuple[int, ...]) -> None:
    config = PRESETS[name]

    assert (config.d_model, config.heads, config.head_size, config.layers) == sizes
    assert config.vocabulary is None
    assert config.feed_forward in (None, 4 * config.d_model)


def test_published_counts() -> None:
    """BERT-base has 85.6 million parameters in its pooler and layers; LLaMA's attention 4·D² = 67 million."""
    assert parameters(PRESETS["bert-base"]) == 85_054_464
    assert parameters(PRESETS["llama-7b"]) == 4 * 4096**2
    assert parameters(PRESETS["gpt3"]) == 4 * 12288**2 + 4 * 12288
