"""A graph whose replies depend on the neighbours in a batch is refused."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.encoders import seeded
from torch import nn

from polyhead_export import ParityError
from polyhead_export.comparison import Closeness, Errors
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.kinds.stream import StreamGraph
from polyhead_export.neighbours import measure_neighbours
from polyhead_export.parity import Reference
from polyhead_export.precision import Precision
from polyhead_export.quantisation import quantise
from polyhead_export.weights import names_of, share_weights
from polyhead_model import EncoderConfig, from_torch

CONFIG = EncoderConfig(d_model=32, heads=2, layers=2, feed_forward=48)
PYTORCH = Errors(1e-7, 1e-6)
COMPARED = {"output": Closeness(graph=PYTORCH, pytorch=PYTORCH)}


def one_scale_for_the_batch(model: ir.Model) -> None:
    """Let the largest value of all tokens decide the scale of each, as onnxruntime's own int8 does."""
    everything = ir.Value(
        name="everything",
        const_value=ir.Tensor(np.array([0, 1, 2]), name="everything"),
        shape=ir.Shape([3]),
        type=ir.TensorType(ir.DataType.INT64),
    )
    model.graph.initializers["everything"] = everything
    scales = [node for node in model.graph if node.op_type == "ReduceMax"]
    assert len(scales) == 8  # of what projections and feed-forward networks read, twice
    for node in scales:
        node.replace_input_with(1, everything)


def largest_of_the_batch(model: ir.Model) -> None:
    """Add a thousandth of the batch's largest number to each."""
    output = model.graph.outputs[0]
    tape = ir.tape.Tape()
    tiny = tape.op("Constant", [], {"value": ir.Tensor(np.float32(1e-3))})
    total = tape.op("Mul", [tape.op("ReduceMax", [output], {"keepdims": 0}), tiny])
    changed = tape.op("Add", [output, total])
    for number, node in enumerate(tape.nodes):
        node.outputs[0].name = f"planted_{number}"
        model.graph.append(node)
    output.name, changed.name = "before", output.name
    changed.type, changed.shape = output.type, output.shape
    model.graph.outputs[0] = changed


@cache
def traced() -> ir.Model:
    """The fast graph of `CONFIG`. Clone it before you change it."""
    return build_graph(seeded(CONFIG, 6), FastGraph(), pack=True)


@pytest.mark.parametrize(
    ("in_int8", "plant", "is_refused"),
    [
        (False, None, False),
        (False, largest_of_the_batch, True),
        (True, None, False),
        (True, one_scale_for_the_batch, True),
    ],
)
def test_what_neighbours_change_is_measured(
    in_int8: bool, plant: Callable[[ir.Model], None] | None, is_refused: bool, tmp_path: Path
) -> None:
    encoder, kind = seeded(CONFIG, 6), FastGraph()
    model = traced().clone()
    names = names_of(encoder)
    if in_int8:
        quantise(model, names)
    if plant is not None:
        plant(model)
    share_weights([model], tmp_path, names)
    ir.save(model, tmp_path / kind.file)

    precision: Precision = "int8" if in_int8 else "fp32"

    def measured() -> float:
        return measure_neighbours(tmp_path, kind, CONFIG, precision, COMPARED)["output"].largest

    if is_refused:
        with pytest.raises(ParityError, match=r"neighbours must change its 'output' by at most 6\.6e-05"):
            measured()
    else:
        assert measured() == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loud_neighbours_change_nothing_in_heads_of_odd_width(seed: int, tmp_path: Path) -> None:
    """Limits come from quiet inputs; these modules were refused for the rounding of loud ones."""
    torch.manual_seed(seed)
    encoder, kind = from_torch(nn.MultiheadAttention(15, 3)), StreamGraph()
    model, file = build_graph(encoder, kind, pack=True), tmp_path / kind.file
    ir.save(model, file)
    compared = Reference(encoder).compare(file, kind, model)

    changes = measure_neighbours(tmp_path, kind, encoder.config, "fp32", compared)

    assert all(each.largest == 0 for each in changes.values())
