"""An encoder's configuration: what it allows, and what it says to the rest."""

import dataclasses
import json
import re
from typing import Any

import pytest

from polyhead_model import PRESETS, EncoderConfig


@pytest.mark.parametrize("name", PRESETS)
def test_json_there_and_back(name: str) -> None:
    config = PRESETS[name]

    assert EncoderConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_head_width_follows_from_the_model_or_is_given() -> None:
    assert EncoderConfig(d_model=12, heads=3, layers=1).head_size == 4
    own = EncoderConfig(d_model=12, heads=5, layers=1, head_width=7)
    assert (own.head_size, own.inner_size) == (7, 35)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "d_model must be at least 1, was 0"),
        ({"heads": -2}, "heads must be at least 1, was -2"),
        ({"layers": 0}, "layers must be at least 1, was 0"),
        ({"layers": 10**9}, "layers must be at most 10,000, was 1,000,000,000"),
        ({"head_width": 0}, "head_width must be at least 1, was 0"),
        ({"feed_forward": 0}, "feed_forward must be at least 1, was 0"),
        ({"types": -1}, "types must be 0 or more, was -1"),
        ({"heads": 5}, "d_model (16) must be a multiple of heads (5); give head_width"),
        ({"norm": "both"}, "norm must be one of post, pre, was 'both'"),
        ({"activation": "swish"}, "activation must be one of gelu, gelu_tanh, relu, was 'swish'"),
        ({"pooling": "sum"}, "pooling must be one of mean, cls, max, was 'sum'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, was 1.0"),
        ({"dropout": float("nan")}, "dropout must be at least 0 and below 1, was nan"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon must be above 0 and below 1, was 0"),
        ({"norm": "pre"}, "norm must be 'post' when feed_forward is None"),
        ({"positions": 8}, "positions needs vocabulary"),
        ({"types": 2}, "types needs vocabulary"),
        ({"embedding_norm": True}, "embedding_norm needs vocabulary"),
        ({"normalise": True}, "normalise needs pooling"),
        ({"padding_id": 1, "vocabulary": 8}, "padding_id needs vocabulary and positions"),
        ({"padding_id": 1}, "padding_id needs vocabulary and positions"),
        (
            {"padding_id": 8, "vocabulary": 8, "positions": 4},
            "padding_id must be between 0 and vocabulary - 1 (7), was 8",
        ),
    ],
)
def test_bad_values_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EncoderConfig(**{"d_model": 16, "heads": 4, "layers": 2} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": "16"}, "d_model must be an integer, was '16'"),
        ({"heads": 4.0}, "heads must be an integer, was 4.0"),
        ({"layers": True}, "layers must be an integer, was True"),
        ({"types": None}, "types must be an integer, was None"),
        ({"padding_id": "1"}, "padding_id must be an integer, was '1'"),
        ({"bias": 1}, "bias must be true or false, was 1"),
        ({"dropout": "0"}, "dropout must be a number, was '0'"),
    ],
)
def test_bad_types_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        EncoderConfig(**{"d_model": 16, "heads": 4, "layers": 2} | fields)
