"""Which outputs are asked for, and which wishes are refused."""

import re
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from tests.metadata import described

from polyhead_client import InvalidRequest, ModelInfo
from polyhead_client.asked import Asked
from polyhead_client.requested import RequestedOutputs
from polyhead_client.selection import select
from polyhead_proto import messages as pb


def model(*outputs: str) -> ModelInfo:
    return ModelInfo.from_message(
        pb.ModelMetadataResponse(
            name="tiny",
            versions=["1"],
            outputs=[{"name": name} for name in outputs],
            properties={"tensors": described(outputs)},
        )
    )


ATTENTION = model("output", *(f"attention.{layer}" for layer in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)))


def selected(info: ModelInfo, **wishes: Any) -> RequestedOutputs:
    return select(info, Asked.read(wishes, text=False))


def layers_of(requested: RequestedOutputs) -> tuple[int, ...]:
    return tuple(layer for output in requested.with_role("attention") for layer in output.layers)


@pytest.mark.parametrize(
    ("attention", "layers"),
    [
        (None, ()),
        (False, ()),
        (True, tuple(range(11))),
        (0, (0,)),
        (-1, (10,)),
        ([5, 0], (5, 0)),
        (range(2), (0, 1)),
    ],
)
def test_layers_are_chosen_in_order(attention: Any, layers: tuple[int, ...]) -> None:
    assert layers_of(selected(ATTENTION, attention=attention)) == layers


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (
            {"attention": 11},
            "attention must be layers that tiny has (0 to 10; in attention, -1 is the last), was 11",
        ),
        ({"attention": -12}, "was -12"),
        ({"attention": []}, "attention must name at least one layer, was empty"),
        ({"attention": [1, 1]}, "attention must name each layer once, was [1, 1]"),
        ({"attention": "5"}, "attention must be True or layer numbers, was '5'"),
        ({"attention": [0.5]}, "attention must be True or layer numbers, was [0.5]"),
        ({"attention": [True]}, "attention must be True or layer numbers, was [True]"),
        (
            {"heads": 0},
            "heads goes with attention or cross_attention or scores or thumbnails or top or value_norms",
        ),
        ({"queries": 0}, "queries goes with attention or cross_attention, which was not"),
        ({"dtype": "FP16"}, "dtype goes with attention or cross_attention or contacts, which was not"),
        ({"attention": 0, "dtype": "FP64"}, "dtype must be one of FP32, FP16, UINT8, was 'FP64'"),
        ({"attention": 0, "heads": []}, "heads must be one or more indices, was []"),
        ({"attention": 0, "heads": 1.5}, "heads must be one or more indices, was 1.5"),
        ({"attention": 0, "heads": True}, "heads must be one or more indices, was True"),
        ({"attention": 0, "heads": [0, -1]}, "heads must be 0 or more, was -1"),
        ({"attention": 0, "heads": [1, 1]}, "heads must be given once each, was [1, 1]"),
        (
            {"attention": 0, "queries": slice(2, None)},
            "queries must be a slice of integers with an end, was slice(2, None, None)",
        ),
        (
            {"attention": 0, "heads": slice(0, 3, 0)},
            "heads must be a slice of integers with an end, was slice(0, 3, 0)",
        ),
        ({"attention": 0, "heads": range(10**30)}, "heads must be at most 65536 indices, were more"),
        ({"attention": count()}, "attention must be at most 65536 indices, were more"),
        ({"pooled": True}, "pooled is not available: tiny does not pool"),
        ({"tokens": True}, "tokens is not available: tiny has no tokeniser"),
        ({"output": False}, "nothing was asked for: output, pooled, logits, tokens and all others are off"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(wishes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        selected(ATTENTION, **wishes)


def test_a_model_without_attention_says_so() -> None:
    with pytest.raises(InvalidRequest, match="attention is not available: tiny has no attention outputs"):
        selected(model("output"), attention=True)
