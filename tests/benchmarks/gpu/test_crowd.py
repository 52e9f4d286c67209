"""Requests of several generators, and their answers as one."""

import dataclasses

import numpy as np
import pytest

from gpu.crowd import together
from gpu.generator import Order, requests_of
from polyhead_proto import messages as pb

ORDER = Order(
    address="127.0.0.1:1",
    model="base-fp16.attention",
    vocabulary=50,
    types=True,
    batch=2,
    tokens=5,
    outputs=("pooled", "attention.3"),
    dtype="UINT8",
    seconds=1.0,
)


def test_requests_carry_what_the_model_takes() -> None:
    requests = [pb.ModelInferRequest.FromString(each) for each in requests_of(ORDER, count=3)]

    assert len({each.raw_input_contents[0] for each in requests}) == 3
    for request in requests:
        assert request.model_name == "base-fp16.attention"
        assert [(each.name, each.datatype, list(each.shape)) for each in request.inputs] == [
            ("input_ids", "INT64", [2, 5]),
            ("token_type_ids", "INT64", [2, 5]),
            ("lengths", "INT32", [2]),
        ]
        ids = np.frombuffer(request.raw_input_contents[0], np.int64)
        assert ids.max() < 50
        assert [output.name for output in request.outputs] == ["pooled", "attention.3"]
        assert [output.parameters["dtype"].string_param for output in request.outputs] == ["", "UINT8"]


def test_models_without_types_get_none() -> None:
    (data,) = requests_of(dataclasses.replace(ORDER, types=False), count=1)

    assert [each.name for each in pb.ModelInferRequest.FromString(data).inputs] == ["input_ids", "lengths"]


def test_answers_add_up() -> None:
    measured = together(
        8,
        [
            {"replies_per_second": 10.0, "latencies_ms": [1.0, 2.0, 3.0], "errors": 1, "cores": 0.5},
            {"replies_per_second": 5.0, "latencies_ms": [100.0], "errors": 0, "cores": 0.25},
        ],
    )

    assert measured.sequences_per_second == pytest.approx(120.0)
    assert measured.p50_ms == pytest.approx(2.5)
    assert measured.p99_ms > 90
    assert (measured.replies, measured.errors, measured.cores) == (4, 1, 0.75)


def test_no_replies_are_no_latency() -> None:
    nothing = {"replies_per_second": 0.0, "latencies_ms": [], "errors": 7, "cores": 0.1}
    measured = together(1, [nothing])

    assert np.isnan(measured.p50_ms)
    assert measured.errors == 7
