"""Deviation of each graph, in each precision, from PyTorch in fp32 on the CPU: ragged, at unseen sizes."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from gpu.families import GRAPHS, build, open_graph
from gpu.plan import Check, EncoderFamily
from polyhead_export.parity import deviation
from polyhead_export.samples import sample_inputs
from polyhead_model import Encoder
from polyhead_server.engine.devices import on_cpu, on_cuda
from polyhead_server.engine.session import placed, slow_on_cpu


def run(check: Check) -> None:
    """Compare every family."""
    for family in check.plan.families:
        with check.attempt(f"parity of {family.key}"):
            _compare(check, family)


def _compare(check: Check, family: EncoderFamily) -> None:
    encoder = build(family)
    samples = [
        sample_inputs(encoder.config, *size, seed=seed)
        for seed, size in enumerate(check.plan.parity_sizes, start=100)
    ]
    expected = [_reference(encoder, sample) for sample in samples]
    device = on_cuda("") if check.device.kind == "cuda" else on_cpu("")
    for graph in GRAPHS:
        with check.attempt(f"parity of {family.key}, {graph}.onnx"):
            session = open_graph(check.device, family, check.models, graph)
            names = [value.name for value in session.get_outputs()]
            worst: dict[str, float] = {}
            for sample, wanted in zip(samples, expected, strict=True):
                values = session.run(names, {name: value.numpy() for name, value in sample.items()})
                for name, value in zip(names, values, strict=True):
                    if value.shape != wanted[name].shape:
                        raise ValueError(f"{name} must have shape {wanted[name].shape}, was {value.shape}")
                    kind = name.partition(".")[0]
                    worst[kind] = max(worst.get(kind, 0.0), deviation(value, wanted[name]))
            operators = placed(session)
            check.write(
                "graph",
                family=family.key,
                graph=graph,
                worst=worst,
                on_cpu=device.left_to_cpu(operators),
                slow_on_cpu=slow_on_cpu(operators, device),
            )


def _reference(encoder: Encoder, inputs: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    """Return PyTorch's outputs by name."""
    rest = dict(inputs)
    ids, lengths = rest.pop("input_ids"), rest.pop("lengths")
    with torch.inference_mode():
        result = encoder(ids, lengths, need_weights=True, **rest)
    outputs = {"output": result.output, "pooled": result.pooled}
    outputs |= {f"attention.{layer}": weights for layer, weights in enumerate(result.attention)}
    return {name: value.numpy() for name, value in outputs.items()}
