"""The one description of what a graph takes and gives."""

import json
from typing import Any

import pytest

from polyhead_proto.tensors import TensorSpec

SCORES = TensorSpec(
    name="head_scores",
    datatype="FP32",
    axes=("B", "A", "H5", "Scores"),
    shape=(-1, 2, 5, 3),
    role="head_scores",
    range=(0.0, None),
    layers=(1, 4),
    heads=(0, 1, 2, 5, 7),
    labels=("a", "b", "c"),
    unit=False,
)


def test_what_is_written_is_read() -> None:
    written = json.loads(json.dumps(SCORES.to_json()))

    read = TensorSpec.from_json(written, name=SCORES.name, datatype=SCORES.datatype, shape=SCORES.shape)

    assert read == SCORES
    assert (read.layer_axis, read.head_axis, list(read.of_layers)) == (1, 2, [1, 4])
    assert read.sizes == {"A": 2, "H5": 5, "Scores": 3}


def test_a_server_that_describes_nothing() -> None:
    read = TensorSpec.from_json({}, name="pooled", datatype="FP32", shape=[-1, 8])

    assert (read.role, read.axes, read.sizes, read.of_layers) == ("pooled", (), {}, ())


def test_sizes_take_the_place_of_letters() -> None:
    spec = TensorSpec(name="choice", datatype="INT32", axes=("B", "L"), below="H", fill="L")

    sized = spec.with_sizes({"L": 3, "H": 4})

    assert (sized.shape, sized.below, sized.fill) == ((-1, 3), 4, 3)
    assert sized.filled_at({"B": 2}).tolist() == [[3, 3, 3], [3, 3, 3]]


@pytest.mark.parametrize("described", [{"axes": 3}, {"layers": ["x"]}, {"range": [0]}, {"layer": "first"}])
def test_what_cannot_be_read_is_an_error(described: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        TensorSpec.from_json(described, name="x", datatype="FP32", shape=())
