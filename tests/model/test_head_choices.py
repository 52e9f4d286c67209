"""The heads of an encoder as commands spell them."""

import re

import pytest

from polyhead_model import PRESETS, EncoderConfig
from polyhead_model.head_choices import HeadChoice, parse_head_choices

BASE = EncoderConfig(d_model=96, heads=4, layers=2)


def test_heads_are_numbers_groups_or_widths() -> None:
    choices = parse_head_choices("6, 8/2,8/8 ,64+32+32")

    assert [choice.suffix for choice in choices] == ["h6", "h8-g2", "h8-g8", "w64-32-32"]
    assert parse_head_choices(",".join(map(str, choices))) == choices
    assert [choice.of(BASE) for choice in choices] == [
        EncoderConfig(d_model=96, heads=6, layers=2),
        EncoderConfig(d_model=96, heads=8, kv_heads=2, layers=2),
        EncoderConfig(d_model=96, heads=8, kv_heads=8, layers=2),
        EncoderConfig(d_model=96, heads=3, head_width=64, head_widths=((64, 32, 32),) * 2, layers=2),
    ]


def test_a_head_keeps_the_width_that_the_encoder_says() -> None:
    mistral = PRESETS["mistral-7b"]

    (sixteen,) = parse_head_choices("16")
    assert (sixteen.of(mistral).head_size, sixteen.of(mistral).groups) == (128, 16)
    (uneven,) = parse_head_choices("32+16")
    assert (uneven.of(mistral).kv_heads, uneven.of(mistral).head_widths) == (None, ((32, 16),))
    assert HeadChoice(heads=4).of(uneven.of(BASE)).widths_of(1) == [32] * 4


@pytest.mark.parametrize(
    "text", ["", "0", "8/0", "-1", "8/", "/2", "8/2/2", "64+", "64+32/2", "8,,2", "²", "8 2"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"such as 64+32+32, was {text!r}")):
        parse_head_choices(text)


@pytest.mark.parametrize(
    ("config", "heads", "message"),
    [
        (BASE, "8/3", "kv_heads must divide heads (8), as equally many queries share each, was 3"),
        (BASE, "4/8", "kv_heads must divide heads (4), as equally many queries share each, was 8"),
        (PRESETS["llama-7b"], "999999999/1", "heads must be at most 10,000, was 999,999,999"),
        (BASE, "5", "d_model (96) must be a multiple of heads (5)"),
        (
            EncoderConfig(d_model=96, heads=4, layers=1, rotary_base=9.0),
            "8+6",
            "rotary_base must be left out",
        ),
        (EncoderConfig(d_model=96, heads=4, layers=1, kept_heads=((0, 3),)), "2", "kept_heads[0] must be"),
    ],
)
def test_heads_that_the_encoder_cannot_have(config: EncoderConfig, heads: str, message: str) -> None:
    (choice,) = parse_head_choices(heads)

    with pytest.raises(ValueError, match=re.escape(f"--heads cannot be {heads} here: {message}")):
        choice.of(config)
