import json
from typing import Any

import pytest

from polyhead_load import Lengths, LoadError, LoadPlan
from polyhead_load.outputs import Outputs

LENGTHS = Lengths(median=29, sigma=0.6, low=8, high=128)


def plan(**fields: Any) -> LoadPlan:
    basis: dict[str, Any] = {"address": "a:1", "model": "m", "tokens": 8, "mode": "closed", "seconds": 2.0}
    return LoadPlan(**(basis | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"outputs": Outputs(fetch=("attention",), dtype="UINT8", heads="0,3", queries="0:2")},
        {
            "outputs": Outputs(fetch=("pooled", "attention"), layers=(0, 5)),
            "tokens": LENGTHS,
            "batch": 4,
            "text": True,
        },
        {"mode": "open", "rate": 12.5, "warm_up_seconds": 1, "seconds": 3, "seed": 9, "max_in_flight": 4},
    ],
)
def test_a_plan_survives_json(fields: dict[str, Any]) -> None:
    one = plan(**fields)

    assert LoadPlan.from_json(one.to_json()) == one
    assert json.loads(one.to_json())["model"] == "m"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mode": "open"},
            "rate must be more than 0 requests a second, and finite, for an open loop, was None",
        ),
        ({"users": 0}, "users must be 1 or more, was 0"),
        ({"tokens": 0}, "tokens must be 1 or more, was 0"),
        ({"seconds": 0.0}, "seconds must be more than 0, was 0.0"),
        (
            {"warm_up_seconds": float("inf")},
            "warm_up_seconds must be 0 or more, and finite, was inf",
        ),
        (
            {"mode": "open", "rate": float("inf")},
            "rate must be more than 0 requests a second, and finite, for an open loop, was inf",
        ),
        ({"timeout_seconds": 0.0}, "timeout_seconds must be more than 0, and finite, was 0.0"),
        ({"seed": -1}, "seed must be 0 or more, was -1"),
    ],
)
def test_a_wrong_plan_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError) as error:
        plan(**fields)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "no plan: Invalid JSON"),
        (plan(tokens=LENGTHS).to_json().replace('"sigma"', '"sig"'), "no plan: tokens: Lengths: sig"),
        ("{}", "no plan: address: "),
        (plan().to_json().replace('"closed"', '"ajar"'), "no plan: mode: "),
        (plan().to_json().replace('"batch": 1', '"batch": 0'), "batch must be 1 or more, was 0"),
    ],
)
def test_json_that_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(LoadError) as error:
        LoadPlan.from_json(text)
    assert str(error.value).startswith(message)
