"""Check a 16-bit family against PyTorch, on a machine whose CPU may not compute in 16 bits.

Two questions are answered separately. Is the exported graph the encoder? Its weights are rounded, so it is
compared with an encoder that has the same rounded weights, both in fp32 and both in float64, as closely as
every other graph. And how much does 16-bit arithmetic change? The graph before operator fusion is run in fp32
with every result rounded, and compared with the original encoder.

onnxruntime's CPU provider has no bf16 kernels, and computes most of fp16 in fp32 without rounding in between.
So 16-bit arithmetic is emulated: every 16-bit value becomes fp32 and, to see what 16 bits make of it, is
rounded to 16 bits after each operator. GPU kernels do the same: they accumulate in fp32 and round the result.
"""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from polyhead_export.comparison import Closeness, check_parity
from polyhead_export.cuda_operators import emulate
from polyhead_export.errors import ParityError
from polyhead_export.parity import RANDOM_INPUTS, Drift, Judged, Reference
from polyhead_export.precision import Precision
from polyhead_export.signature import GraphKind
from polyhead_model import Encoder

LIMITS: Mapping[Precision, float] = {"fp16": 5e-2, "bf16": 4e-1}
"""The largest drift that is accepted, as a `deviation`.

Rounding alone stays well below: twelve layers of 768/12 drift by 0.008 in fp16, and bf16 has three bits
fewer. A larger drift means that values overflowed, or that the encoder relies on differences that 16 bits
cannot hold.
"""

_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class JudgeInHalfPrecision:
    """Compares 16-bit graphs with PyTorch, by emulation; a `Judge`.

    Args:
        encoder: The original encoder, in fp32.
        rounded: The encoder in this precision.
        folder: Holds the graphs as they will be served, and their weights.
        traced: The graphs before operator fusion; each is removed once it is judged, as they may hold much
            memory.
        precision: The precision of the graphs.
    """

    def __init__(
        self,
        encoder: Encoder,
        rounded: Encoder,
        folder: Path,
        traced: dict[GraphKind, ir.Model],
        precision: Precision,
    ) -> None:
        self._wide, self._rounded = Reference(encoder), Reference(rounded)
        self._folder = folder
        self._traced = traced
        self._precision = precision

    def judge(self, kind: GraphKind) -> Judged:
        """Compare a graph. Drift comes first: its message is the better one for weights that do not fit."""
        traced = self._traced.pop(kind)
        compared = self._compare(self._wide, traced, kind, rounding=True)
        drift = {name: each.graph.largest for name, each in compared.items()}
        _check_drift(drift, kind, self._precision)
        served = ir.load(self._folder / kind.file)
        exact = widen(served, rounding=False)
        outputs = self._compare(self._rounded, served, kind, rounding=False, exact=exact)
        check_parity(outputs, kind.file)
        return Judged(outputs=outputs, drift=drift)

    def drift(self, judged: Mapping[str, Judged]) -> Drift:
        """Return the drift of graphs."""
        return Drift(
            deviations={graph: each.drift or {} for graph, each in judged.items()},
            limit=LIMITS[self._precision],
            emulated=True,
            inputs=RANDOM_INPUTS,
        )

    def _compare(
        self,
        reference: Reference,
        model: ir.Model,
        kind: GraphKind,
        *,
        rounding: bool,
        exact: ir.Model | None = None,
    ) -> dict[str, Closeness]:
        # Not in the system's temporary folder: the weights may be larger than the space there.
        with tempfile.TemporaryDirectory(prefix="emulation-", dir=self._folder) as place:
            file = Path(place) / kind.file
            ir.save(for_cpu(model, rounding=rounding), file, external_data="weights.bin")
            return reference.compare(file, kind, exact)


def for_cpu(model: ir.Model, *, rounding: bool) -> ir.Model:
    """Return what `widen` does, with operators that onnxruntime has kernels for on CPUs."""
    wide = widen(model, rounding=rounding)
    emulate(wide)
    return wide


def widen(model: ir.Model, *, rounding: bool) -> ir.Model:
    """Return a copy of a 16-bit model that computes in fp32.

    Args:
        model: A model whose inputs and outputs are not 16-bit.
        rounding: Round the result of each 16-bit operator to its original type. Otherwise only the weights
            remain rounded.
    """
    wide = model.clone()
    for value in wide.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in _HALF:
            # Converted when it is saved, so that there are not two copies of all weights at once.
            value.const_value = ir.LazyTensor(
                partial(_in_fp32, value.const_value),
                dtype=ir.DataType.FLOAT,
                shape=ir.Shape(value.const_value.shape.numpy()),
                name=value.name,
            )
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in list(wide.graph):
        if node.op_type == "Cast" and node.attributes["to"].as_int() in _HALF:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
        for output in node.outputs:
            half = output.dtype
            if half in _HALF:
                output.type = ir.TensorType(ir.DataType.FLOAT)
                if rounding:
                    _round(output, half, wide.graph)
    return wide


def _in_fp32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    array: NDArray[Any] = tensor.numpy().astype(np.float32)
    return ir.Tensor(array)


def _round(value: ir.Value, to: ir.DataType, graph: ir.Graph) -> None:
    """Make every consumer of a value read it rounded to `to`."""
    rounded = ir.node("Cast", [value], {"to": to})
    back = ir.node("Cast", rounded.outputs, {"to": ir.DataType.FLOAT})
    for cast, name in ((rounded, "half"), (back, "rounded")):
        cast.outputs[0].name = f"{value.name}_{name}"
    readers = list(value.uses())
    for reader, index in readers:
        if reader is not rounded:
            reader.replace_input_with(index, back.outputs[0])
    if (node := value.producer()) is not None:
        graph.insert_after(node, [rounded, back])


def _check_drift(drift: Mapping[str, float], kind: GraphKind, precision: Precision) -> None:
    output, value = max(drift.items(), key=lambda item: item[1])
    if not value <= LIMITS[precision]:
        raise ParityError(
            f"{kind.file}: {output!r} in {precision} must be within {LIMITS[precision]:g} of fp32, is off by "
            f"{value:g}: this encoder's numbers do not fit; export it in another precision"
        )
