"""Implementations of attention give the same numbers before they are timed; ratios are of the same turn."""

import numpy as np
import pytest
import torch

from benchmarks.compare.heads import FAST, INT8, LOOP, HeadLayer, checked, compare, table
from polyhead_model import Encoder, EncoderConfig, MultiHeadAttention
from polyhead_model.head_choices import parse_head_choices


@pytest.mark.parametrize("heads", ["12", "3", "12/4", "12/1", "64+32+16+64"])
def test_implementations_agree(heads: str) -> None:
    (choice,) = parse_head_choices(heads)
    encoder = Encoder(choice.of(EncoderConfig(d_model=768, heads=1, head_width=64, layers=1))).eval()
    (attention,) = encoder.layers
    assert isinstance(attention, MultiHeadAttention)
    with torch.inference_mode():
        calls = checked(HeadLayer(attention=attention, graphs={}).calls(torch.randn(1, 5, 768)))

    assert len(calls) == 3


def test_one_that_is_off_is_not_timed() -> None:
    right, near, wrong = (np.full(3, value, np.float32) for value in (1.0, 1.01, 1.1))

    assert checked({LOOP: right.copy, INT8: near.copy})
    for name, output in ((FAST, near), (INT8, wrong)):
        with pytest.raises(ValueError, match=f"{name} must agree with {LOOP}, is off by 0"):
            checked({LOOP: right.copy, name: output.copy})


def test_a_table_has_a_column_for_each_comparison() -> None:
    array = np.zeros(1, np.float32)

    cells = compare({"a": lambda: array, "b": lambda: array}, "a", 0.0)

    assert cells["a"].endswith(" ms")
    head, _, *rows, _ = table([("T = 1", cells), ("T = 2", {"a": "1", "b": "2"})])
    assert head == "|  | T = 1 | T = 2 |"
    assert rows == [f"| a | {cells['a']} | 1 |", f"| b | {cells['b']} | 2 |"]
