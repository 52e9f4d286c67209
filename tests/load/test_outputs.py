"""What is fetched of a reply."""

from typing import Any, cast

import pytest
from tests.load.fake_server import metadata_of

from polyhead_client import ModelInfo
from polyhead_client.operations import Operations
from polyhead_load import LoadError
from polyhead_load.outputs import DEFAULT_OUTPUTS, OUTPUT_NAMES, parse_outputs


def family(*outputs: str) -> ModelInfo:
    message = metadata_of("x")
    for name in outputs:
        message.outputs.add(name=name, datatype="FP32", shape=[-1, 4])
    return ModelInfo.from_message(cast(Any, message))


@pytest.mark.parametrize(
    ("outputs", "usual"),
    [((), "output"), (("logits",), "logits"), (("pooled",), "pooled"), (("logits", "pooled"), "pooled")],
)
def test_the_default_is_what_a_product_fetches(outputs: tuple[str, ...], usual: str) -> None:
    assert DEFAULT_OUTPUTS.of(family(*outputs)) == parse_outputs(usual)
    assert parse_outputs("output").of(family(*outputs)) == parse_outputs("output")


@pytest.mark.parametrize("name", OUTPUT_NAMES)
def test_what_is_named_is_asked_for_and_nothing_else(name: str) -> None:
    asked = parse_outputs(name).arguments

    assert [each for each, value in asked.items() if value] == [name]
    Operations("a:1", None).encode(["a text"], **asked)  # the client knows each of them


def test_layers_are_of_attention_and_of_scores() -> None:
    def of(spelled: str) -> tuple[Any, Any]:
        asked = parse_outputs(spelled, layers=(0, 5)).arguments
        return asked["attention"], asked["layers"]

    assert of("attention") == ((0, 5), None)
    assert of("scores") == (False, (0, 5))
    assert of("attention+scores") == ((0, 5), (0, 5))


@pytest.mark.parametrize(
    ("spelled", "selected", "message"),
    [
        ("poled", {}, "outputs must be of .*pooled, .*, joined by \\+, was 'poled'"),
        ("pooled+pooled", {}, "was 'pooled\\+pooled'"),
        ("pooled", {"heads": "0"}, "heads goes with attention"),
        ("", {"layers": (0,)}, "layers goes with"),
        ("attention", {"layers": ()}, "attention must name at least one layer"),
        ("attention", {"queries": "x"}, "queries must be indices"),
        ("attention", {"dtype": "FP8"}, "dtype must be one of FP32, FP16, UINT8"),
    ],
)
def test_what_does_not_go_together_is_refused(spelled: str, selected: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        parse_outputs(spelled, **selected)
