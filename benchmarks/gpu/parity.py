"""How far each graph, in each precision, is from PyTorch in fp32 on the CPU: ragged, at unseen sizes."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from gpu.families import GRAPHS, build, open_graph
from gpu.plan import Check, Family
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder

Arrays = Mapping[str, NDArray[np.float32]]


def run(check: Check) -> None:
    """Compare every family that is timed or compared."""
    for family in check.plan.families:
        with check.attempt(f"parity of {family.key}"):
            _compare(check, family)


def placed(session: ort.InferenceSession) -> dict[str, dict[str, int]]:
    """Count a session's operators by execution provider."""
    counts: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        counts.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return {provider: dict(count) for provider, count in counts.items()}


def difference(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest |actual − expected| / max(1, |expected|); NaN where a number is not finite."""
    if actual.shape != expected.shape:
        raise ValueError(f"shape {actual.shape} must be {expected.shape}")
    scaled = np.abs(actual.astype(np.float64) - expected) / np.maximum(1.0, np.abs(expected))
    return float(scaled.max(initial=0.0))


def _compare(check: Check, family: Family) -> None:
    encoder = build(family)
    samples = [
        sample_inputs(encoder.config, *size, seed=seed)
        for seed, size in enumerate(check.plan.parity_sizes, start=100)
    ]
    expected = [_reference(encoder, sample) for sample in samples]
    for graph in GRAPHS:
        with check.attempt(f"parity of {family.key}, {graph}.onnx"):
            session = open_graph(check.device, family, check.models, graph)
            names = [value.name for value in session.get_outputs()]
            worst: dict[str, float] = {}
            for sample, wanted in zip(samples, expected, strict=True):
                values = session.run(names, {name: value.numpy() for name, value in sample.items()})
                for name, value in zip(names, values, strict=True):
                    kind = name.partition(".")[0]
                    worst[kind] = float(np.maximum(worst.get(kind, 0.0), difference(value, wanted[name])))
            check.write("graph", family=family.key, graph=graph, worst=worst, operators=placed(session))


def _reference(encoder: Encoder, inputs: Mapping[str, torch.Tensor]) -> Arrays:
    """PyTorch's outputs by name."""
    rest = dict(inputs)
    ids, lengths = rest.pop("input_ids"), rest.pop("lengths")
    with torch.inference_mode():
        result = encoder(ids, lengths, need_weights=True, **rest)
    outputs = {"output": result.output, "pooled": result.pooled}
    outputs |= {f"attention.{layer}": weights for layer, weights in enumerate(result.attention)}
    return {name: value.numpy() for name, value in outputs.items()}
