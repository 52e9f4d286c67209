"""How far a family of 16 bits is from PyTorch, on a machine whose processor may not compute in 16 bits.

Two questions, asked apart. Is the graph that is served the encoder? Its weights are rounded, so it is
compared with an encoder of the same rounded weights, both in fp32: to the tolerance of every other graph.
And what do 16 bits change? The graph as it was before operators were fused is computed in fp32 with every
result rounded, and compared with the encoder as it was.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx_ir as ir

from polyhead_export.emulation import widen
from polyhead_export.errors import ParityError
from polyhead_export.parity import Drift, Parity, check_parity, measure_deviations, sizes_of
from polyhead_export.precision import Precision, in_precision
from polyhead_export.signature import GraphKind
from polyhead_model import Encoder

LIMITS: Mapping[Precision, float] = {"fp16": 5e-2, "bf16": 4e-1}
"""The largest drift that is accepted, as a `deviation`.

Rounding alone stays well below: twelve layers of 768/12 drift by 0.008 in fp16, and bf16 has three bits
fewer. What goes beyond has overflowed, or lives on differences that 16 bits do not see.
"""


def measure_drift(
    encoder: Encoder,
    folder: Path,
    traced: Mapping[GraphKind, ir.Model],
    precision: Precision,
    on_graph: Callable[[GraphKind], None] = lambda _: None,
) -> Parity:
    """Compares graphs of 16 bits with PyTorch, by emulation.

    Args:
        encoder: In fp32.
        folder: Holds the graphs as they will be served, and their weights.
        traced: The graphs before operators were fused.
        precision: Of the graphs.
        on_graph: Called before each graph is measured.

    Raises:
        ParityError: A graph does not compute what PyTorch does, or drifts further than `LIMITS`.
    """
    same_weights = in_precision(encoder, precision).float()
    sizes = sizes_of(encoder.config)
    deviations: dict[str, dict[str, float]] = {}
    drift: dict[str, dict[str, float]] = {}
    for kind, plain in traced.items():
        on_graph(kind)
        # First, since it has the better word for weights that do not fit.
        drift[kind.name] = _measure(encoder, widen(plain, rounding=True), kind, folder)
        _check_drift(drift[kind.name], kind, precision)
        served = widen(ir.load(folder / kind.file), rounding=False)
        deviations[kind.name] = _measure(same_weights, served, kind, folder)
        check_parity(deviations[kind.name], kind, sizes)
    return Parity(
        sizes=sizes,
        deviations=deviations,
        drift=Drift(deviations=drift, limit=LIMITS[precision]),
    )


def _measure(encoder: Encoder, model: ir.Model, kind: GraphKind, folder: Path) -> dict[str, float]:
    # Not in the system's folder for temporary files: the weights may be more than fits there.
    with tempfile.TemporaryDirectory(prefix="emulation-", dir=folder) as place:
        file = Path(place) / kind.file
        ir.save(model, file, external_data="weights.bin")
        return measure_deviations(encoder, file, kind)


def _check_drift(drift: Mapping[str, float], kind: GraphKind, precision: Precision) -> None:
    output, value = max(drift.items(), key=lambda item: item[1])
    if not value <= LIMITS[precision]:
        raise ParityError(
            f"{kind.file}: {output!r} in {precision} must be within {LIMITS[precision]:g} of fp32, is off by "
            f"{value:g}: this encoder's numbers do not fit; export it in another precision"
        )
