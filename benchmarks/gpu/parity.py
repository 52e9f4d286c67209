"""How far each graph's numbers, in each precision, are from PyTorch's in fp32 on the CPU."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu.families import build, graph_file, is_trained
from gpu.graph import open_session, placed
from gpu.part import Bench, Pace
from gpu.plan import Family
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder

GRAPHS = {"fast": "model.onnx", "attention": "attention.onnx"}

Arrays = Mapping[str, NDArray[np.float32]]


def run(bench: Bench) -> None:
    """Compares family after family."""
    pace = Pace(first_seconds=2.0)
    for family in bench.plan.compared:
        if not bench.fits(f"{family.key}", pace.expected):
            continue
        with bench.attempt(family.key), pace.measured():
            _compare(bench, family)


def difference(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest |actual − expected| / max(1, |expected|); infinite where a number is none."""
    if actual.shape != expected.shape:
        return math.inf
    with warnings.catch_warnings(), np.errstate(invalid="ignore", over="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        worst = float((np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))).max(initial=0.0))
    return worst if math.isfinite(worst) else math.inf


def direction(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The cosine of the angle between two outputs: of their vectors, the one that is furthest off.

    Vectors of zeros, as in padding, have no direction and are left out.
    """
    a, b = (each.reshape(-1, each.shape[-1]).astype(np.float64) for each in (actual, expected))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    kept = norms > 0
    if not kept.any():
        return 1.0
    return float(((a * b).sum(1)[kept] / norms[kept]).min())


def _compare(bench: Bench, family: Family) -> None:
    encoder = build(family)
    sizes = bench.plan.parity_sizes
    inputs = [sample_inputs(encoder.config, *size, seed=seed) for seed, size in enumerate(sizes, start=100)]
    expected = [_reference(encoder, each) for each in inputs]
    for graph, file in GRAPHS.items():
        with bench.attempt(f"{family.key}, {graph} graph"):
            session = open_session(bench.card, graph_file(family, bench.models, file))
            worst, cosine = _deviations(session, inputs, expected)
            bench.row(
                "graph",
                family=family.name,
                precision=family.precision,
                trained=is_trained(family),
                graph=graph,
                d_model=encoder.config.d_model,
                heads=encoder.config.heads,
                layers=encoder.config.layers,
                sizes=sizes,
                output=worst["output"],
                pooled=worst.get("pooled"),
                attention=max((value for name, value in worst.items() if "." in name), default=None),
                cosine=cosine,
                drift_limit=_drift_limit(bench, family),
                operators=placed(session),
            )


def _drift_limit(bench: Bench, family: Family) -> float | None:
    """How far the export lets 16 bits drift, as it wrote it down; None in fp32."""
    manifest = json.loads(graph_file(family, bench.models, "manifest.json").read_text())
    drift = manifest["parity"]["drift"]
    return None if drift is None else float(drift["limit"])


def _deviations(
    session: ort.InferenceSession, inputs: Sequence[Mapping[str, Tensor]], expected: Sequence[Arrays]
) -> tuple[dict[str, float], float]:
    """The largest difference of each output over all inputs, and the smallest cosine of a vector."""
    names = [value.name for value in session.get_outputs()]
    worst, cosine = dict.fromkeys(names, 0.0), 1.0
    for each, wanted in zip(inputs, expected, strict=True):
        values = session.run(names, {name: value.numpy() for name, value in each.items()})
        for name, value in zip(names, values, strict=True):
            worst[name] = max(worst[name], difference(value, wanted[name]))
            if not name.startswith("attention."):
                cosine = min(cosine, direction(value, wanted[name]))
    return worst, cosine


def _reference(encoder: Encoder, inputs: Mapping[str, Tensor]) -> Arrays:
    """PyTorch's outputs by name."""
    rest = dict(inputs)
    x = rest.pop("x") if "x" in rest else rest.pop("input_ids")
    with torch.inference_mode():
        result = encoder(x, rest.pop("lengths"), need_weights=True, **rest)
    outputs = {"output": result.output}
    if result.pooled is not None:
        outputs["pooled"] = result.pooled
    outputs |= {f"attention.{layer}": weights for layer, weights in enumerate(result.attention or ())}
    return {name: value.numpy() for name, value in outputs.items()}
