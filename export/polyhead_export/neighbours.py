"""Measure what a sequence's neighbours in a batch change: next to nothing, in any precision.

Each of a few sequences is run alone, and together with all others, padded. Some neighbours are loud, and
padding holds any number, so that a scale or a sum that spans the batch is found out. The loud ones are not
judged themselves: what is accepted was measured on inputs of usual size, and large scores multiply rounding.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_export.comparison import Change, Closeness, parts_of
from polyhead_export.errors import ParityError
from polyhead_export.half_precision import for_cpu
from polyhead_export.parity import open_session
from polyhead_export.precision import IN_16_BITS, Precision
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, axis_sizes, inputs_of, outputs_of
from polyhead_model import EncoderConfig
from polyhead_proto.drift import change
from polyhead_proto.tensors import TensorSpec

Array = NDArray[Any]

_LENGTHS = (2, 3, 7, 16, 33, 50)
_LOUDNESS = 100.0
"""Every other sequence of vectors is there once more, so many times as large."""
_PADDING: Mapping[str, float | bool] = {"FP32": 1e4, "BOOL": True}
"""What padding holds, by datatype; else 0."""


def measure_neighbours(
    folder: Path,
    kind: GraphKind,
    config: EncoderConfig,
    precision: Precision,
    compared: Mapping[str, Closeness],
) -> dict[str, Change]:
    """Measure a graph of a family, in 16 bits by emulation.

    Args:
        folder: Holds the graphs as they will be served, and their weights.
        kind: The graph's kind.
        config: The encoder's configuration.
        precision: The precision of the graph.
        compared: What the graph's comparison with PyTorch gave.

    Returns:
        The change of each output of floats.

    Raises:
        ParityError: Neighbours change an output by more than the limit.
    """
    graph = folder / kind.file
    # No name for the session: two at once would hold the weights twice.
    if precision not in IN_16_BITS:
        measured = _measure(open_session(graph), config, kind)
    else:
        with tempfile.TemporaryDirectory(prefix="emulation-", dir=folder) as place:
            file = Path(place) / kind.file
            ir.save(for_cpu(ir.load(graph), rounding=True), file, external_data="weights.bin")
            measured = _measure(open_session(file), config, kind)
    changes = {
        name: Change(value, max(each.change_limit for each in parts_of(name, compared)))
        for name, value in measured.items()
    }
    output, worst = max(changes.items(), key=lambda item: item[1].largest / item[1].limit)
    if not worst.largest <= worst.limit:
        raise ParityError(
            f"{kind.file}: a request's neighbours must change its {output!r} by at most "
            f"{worst.limit:.1e} in {precision}, change it by {worst.largest:.1e}"
        )
    return changes


def _measure(session: ort.InferenceSession, config: EncoderConfig, kind: GraphKind) -> dict[str, float]:
    """Return the largest change of each output of floats by neighbours and padding."""
    longest = min(config.positions or max(_LENGTHS), max(_LENGTHS))
    specs = inputs_of(config, kind)
    fixed = axis_sizes(config, [kind])
    requests = []
    for seed, length in enumerate(sorted({min(length, longest) for length in _LENGTHS})):
        inputs = sample_inputs(config, kind, 1, length, seed=seed)
        requests.append({spec.name: inputs[spec.name].numpy() for spec in specs})
    vectors = {spec.name for spec in specs if _is_vectors(spec)}
    loud = [
        {name: _LOUDNESS * value if name in vectors else value for name, value in one.items()}
        for one in (requests[1::2] if vectors else [])
    ]
    tokens = min(longest + 9, config.positions or longest + 9)
    joined = {
        spec.name: _join([one[spec.name] for one in (*requests, *loud)], spec, fixed, tokens)
        for spec in specs
    }
    outputs = [spec for spec in outputs_of(config, kind) if spec.datatype == "FP32"]
    names = [spec.name for spec in outputs]
    together = session.run(names, joined)
    worst = dict.fromkeys(names, 0.0)
    for place, request in enumerate(requests):
        for spec, alone, batch in zip(outputs, session.run(names, request), together, strict=True):
            mine = batch[(slice(place, place + 1), *map(slice, alone.shape[1:]))]
            worst[spec.name] = max(worst[spec.name], change(mine, alone))
    return worst


def _is_vectors(spec: TensorSpec) -> bool:
    return spec.datatype == "FP32" and spec.axes[-1] == "D"


def _join(arrays: Sequence[Array], spec: TensorSpec, fixed: Mapping[str, int], tokens: int) -> Array:
    """Join arrays of one sequence each, padded to the largest of them, and to `tokens` along T."""
    varies = [axis for axis, letter in enumerate(spec.axes) if axis and letter not in fixed]
    padded = []
    for array in arrays:
        widths = [(0, 0)] * array.ndim
        for axis in varies:
            most = tokens if spec.axes[axis] == "T" else max(each.shape[axis] for each in arrays)
            widths[axis] = (0, most - array.shape[axis])
        padded.append(np.pad(array, widths, constant_values=_PADDING.get(spec.datatype, 0)))
    return np.concatenate(padded)
