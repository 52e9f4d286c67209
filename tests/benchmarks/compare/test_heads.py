"""Implementations of attention give the same numbers before they are timed; ratios are of the same turn."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.compare.heads import BASE, BY_HEADS, HEADS, INT8, LOOP, HeadLayer, checked, compare, vectors
from benchmarks.compare.heads_page import draw, sections
from polyhead_model import Encoder, EncoderConfig


@pytest.mark.parametrize(("heads", "width"), [(12, 64), (3, 64)])
def test_implementations_agree(heads: int, width: int) -> None:
    encoder = Encoder(EncoderConfig(d_model=768, heads=heads, head_width=width, layers=1)).eval()
    with torch.inference_mode():
        calls = HeadLayer(encoder=encoder, graphs={}).calls(vectors(5), ())
        off = checked(calls)

    assert len(calls) == (6 if heads * width == 768 else 5)  # nn.MultiheadAttention has no widths of its own
    assert max(off.values()) <= 1e-5


def test_one_that_is_off_is_not_timed() -> None:
    right, near, wrong = (np.full(3, value, np.float32) for value in (1.0, 1.01, 1.1))

    assert checked({LOOP: right.copy, INT8: near.copy})[INT8] == pytest.approx(0.01, rel=1e-3)
    for name, output in ((BASE, near), (INT8, wrong)):
        with pytest.raises(ValueError, match=f"{name} must agree with {LOOP}, is off by 0"):
            checked({LOOP: right.copy, name: output.copy})


def test_calls_are_timed_beside_one_of_them() -> None:
    array = np.zeros(1, np.float32)

    found = compare({"a": lambda: array, "b": lambda: array}, "a", 0.0)

    assert (found["a"]["low"], found["a"]["value"], found["a"]["high"]) == (1, 1, 1)
    assert found["b"]["low"] <= found["b"]["value"] <= found["b"]["high"]
    assert found["b"]["ms"] > 0


def test_a_page_and_a_picture(tmp_path: Path) -> None:
    value = {"ms": 2.0, "low": 0.9, "value": 1.25, "high": 1.4}
    shapes = {f"{heads} × {width}": value for heads in HEADS for width in (768 // heads, 64)}
    result = {
        "by_length": [
            {"tokens": tokens, "off": {}, "attention_flops": 0.5, "compared": {BASE: value, LOOP: value}}
            for tokens in (16, 32)
        ],
        "by_heads": [
            {"tokens": tokens, "implementation": name, "compared": shapes}
            for tokens in BY_HEADS[0]
            for name in BY_HEADS[1]
        ],
    }

    text = "\n".join(sections(result))
    draw(result, tmp_path / "heads.png")

    assert "| heads in a loop | 1.25 (0.90–1.40) | 1.25 (0.90–1.40) | – |" in text
    assert "| onnxruntime fast | 2.00 ms | 2.00 ms | – |" in text
    assert (tmp_path / "heads.png").stat().st_size > 10_000
