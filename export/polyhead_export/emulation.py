"""A graph of 16 bits, computed in single precision.

onnxruntime's CPU provider has no kernels for bf16, and computes most of fp16 in fp32 without rounding in
between. So every value of 16 bits is given 32, and, to see what 16 bits make of it, is rounded to 16 after
each operator. That is what a GPU does: its kernels add up in fp32 and round what they give.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def widen(model: ir.Model, *, rounding: bool) -> ir.Model:
    """A copy of the model that computes in fp32 all that the model computes in 16 bits.

    Args:
        model: Its inputs and outputs are not of 16 bits.
        rounding: Round the result of each operator to the 16 bits that it was of. Otherwise only the
            weights remain rounded.
    """
    wide = model.clone()
    for value in wide.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in _NARROW:
            array: NDArray[Any] = value.const_value.numpy().astype(np.float32)
            value.const_value = ir.Tensor(array, name=value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in list(wide.graph):
        if node.op_type == "Cast" and node.attributes["to"].as_int() in _NARROW:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
        for output in node.outputs:
            narrow = output.dtype
            if narrow in _NARROW:
                output.type = ir.TensorType(ir.DataType.FLOAT)
                if rounding:
                    _round(output, narrow, wide.graph)
    return wide


def _round(value: ir.Value, to: ir.DataType, graph: ir.Graph) -> None:
    """Lets everything that reads the value read it rounded."""
    rounded = ir.node("Cast", [value], {"to": to})
    back = ir.node("Cast", rounded.outputs, {"to": ir.DataType.FLOAT})
    for cast, name in ((rounded, "narrow"), (back, "rounded")):
        cast.outputs[0].name = f"{value.name}_{name}"
    readers = list(value.uses())
    for reader, index in readers:
        if reader is not rounded:
            reader.replace_input_with(index, back.outputs[0])
    if (node := value.producer()) is not None:
        graph.insert_after(node, [rounded, back])
