"""Presets have the parameters that are published of what they are named after."""

from polyhead_model import PRESETS, parameters


def test_published_counts() -> None:
    """BERT-base has 85.6 million parameters in its pooler and layers; LLaMA's attention 4·D² = 67 million."""
    assert parameters(PRESETS["bert-base"]) == 85_054_464
    assert parameters(PRESETS["llama-7b"]) == 4 * 4096**2
    assert parameters(PRESETS["mistral-7b"]) == 2 * 4096**2 + 2 * 4096 * 1024
    assert parameters(PRESETS["llama-2-70b"]) == 2 * 8192**2 + 2 * 8192 * 1024
    assert parameters(PRESETS["gpt3"]) == 4 * 12288**2 + 4 * 12288
