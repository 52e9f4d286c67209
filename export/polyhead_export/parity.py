"""Compare exported graphs with PyTorch, at sizes that the exporter has not seen and with ragged lengths."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead_export.errors import ParityError
from polyhead_export.forward_pass import ForwardPass, norm_maps_of, run_forward
from polyhead_export.graphs import TRACED_SIZE
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, ManifestTensor, inputs_of, outputs_of
from polyhead_model import Encoder, EncoderConfig

TOLERANCE = 1e-5
"""The largest `deviation` that is accepted in fp32."""

RANDOM_INPUTS = "random inputs"
"""What `Drift.inputs` says where there are no sentences."""

_SIZES = ((1, 1), (2, 5), (5, 2), (3, 33), (1, 128))


class Cosine(NamedTuple):
    """The cosines of vectors with what they would be in fp32, or without pruning."""

    least: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a family of another precision is from its encoder in fp32."""

    deviations: dict[str, dict[str, float]]
    """The largest deviation of each output, by graph."""
    limit: float | None = None
    """The largest deviation that is accepted; None where cosines decide."""
    emulated: bool
    """Whether another device computes the family."""
    inputs: str
    """What it was measured on."""
    cosines: dict[str, dict[str, Cosine]] | None = None
    """Of each output of vectors, by graph."""
    least_mean_cosine: float | None = None
    """The lowest mean cosine that is accepted."""

    @property
    def worst(self) -> float:
        """The largest deviation over all graphs and outputs."""
        return max(value for outputs in self.deviations.values() for value in outputs.values())


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The measured agreement of a family's graphs with PyTorch."""

    sizes: tuple[tuple[int, int], ...]
    """The sizes (B, T) that were compared."""
    deviations: dict[str, dict[str, float]]
    """The largest deviation of each output, by graph."""
    tolerance: float = TOLERANCE
    drift: Drift | None = None
    """None in fp32."""

    @property
    def worst(self) -> float:
        """The largest deviation over all graphs and outputs."""
        return max(value for outputs in self.deviations.values() for value in outputs.values())


def deviation(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest |actual − expected| / max(1, |expected|): absolute below 1, relative above.

    The result is infinite where either array holds NaN or infinity. Both arrays must have the same shape.
    """
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))
    worst = float(difference.max(initial=0.0))
    return worst if np.isfinite(worst) else float("inf")


def change(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the `deviation`, where two numbers that are both undefined are equal."""
    undefined = np.isnan(actual) & np.isnan(expected)
    return deviation(np.where(undefined, 0, actual), np.where(undefined, 0, expected))


def cosines_of(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """Return the cosine of each pair of vectors [N, D]: [N]; 1 where both are zero, 0 where only one is."""
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    norm, its_norm = (np.linalg.norm(each, axis=-1) for each in (ours, theirs))
    scale = norm * its_norm
    products = (ours * theirs).sum(axis=-1)
    cosines: NDArray[np.float64] = np.where(
        scale > 0, products / np.where(scale > 0, scale, 1), norm == its_norm
    )
    return cosines


def measure_parity(
    encoder: Encoder,
    folder: Path,
    kinds: Iterable[GraphKind],
    on_graph: Callable[[GraphKind], None] = lambda _: None,
) -> Parity:
    """Compare the graphs in `folder`, as they will be served, with the encoder.

    Args:
        encoder: The encoder that the graphs were exported from.
        folder: Holds the graphs and their weights.
        kinds: The graphs to measure.
        on_graph: Called before each graph is measured.

    Raises:
        ParityError: An output deviates by more than `TOLERANCE`.
    """
    deviations: dict[str, dict[str, float]] = {}
    for kind in kinds:
        on_graph(kind)
        deviations[kind.name] = measure_deviations(encoder, open_session(folder / kind.file), kind)
        check_parity(deviations[kind.name], kind, compared_sizes(encoder.config))
    return Parity(sizes=compared_sizes(encoder.config), deviations=deviations)


def compared_sizes(config: EncoderConfig) -> tuple[tuple[int, int], ...]:
    """Return the sizes (B, T) at which this encoder's graphs are compared."""
    return tuple(
        (batch, tokens)
        for batch, tokens in _SIZES
        if (batch, tokens) != TRACED_SIZE and (config.positions is None or tokens <= config.positions)
    )


def measure_deviations(encoder: Encoder, session: ort.InferenceSession, kind: GraphKind) -> dict[str, float]:
    """Return the largest `deviation` of each output of a graph, over all `compared_sizes` its encoder.

    Args:
        encoder: The reference.
        session: The graph's.
        kind: The kind of the graph.

    Raises:
        ParityError: An output does not have the shape of PyTorch's.
    """
    config = encoder.config
    worst = {spec.name: 0.0 for spec in outputs_of(config, kind)}
    for seed, size in enumerate(compared_sizes(config), start=1):
        inputs = sample_inputs(config, kind, *size, seed=seed)
        feeds = {spec.name: _feed(spec, inputs[spec.name]) for spec in inputs_of(config, kind)}
        actual = session.run(list(worst), feeds)
        reference, expected_outputs = run_reference(encoder, kind, inputs)
        outputs = dict(zip(worst, actual, strict=True))
        for name, got in outputs.items():
            expected = expected_outputs[name]
            if got.shape != expected.shape:
                raise ParityError(
                    f"{kind.file}: {name!r} has shape {got.shape}, PyTorch gives {expected.shape} "
                    f"at (B, T) = {size}"
                )
        ours, theirs = kind.align(outputs, expected_outputs, reference)
        worst = {name: max(worst[name], deviation(ours[name], theirs[name])) for name in worst}
    return worst


def check_parity(worst: Mapping[str, float], kind: GraphKind, sizes: tuple[tuple[int, int], ...]) -> None:
    """Check a graph's deviations against the tolerance.

    Raises:
        ParityError: An output deviates by more than `TOLERANCE`.
    """
    output, value = max(worst.items(), key=lambda item: item[1])
    if not value <= TOLERANCE:
        raise ParityError(
            f"{kind.file}: {output!r} must agree with PyTorch within {TOLERANCE:g}, "
            f"deviates by {value:g} over the sizes {sizes}"
        )


def reference_outputs(
    encoder: Encoder, kind: GraphKind, inputs: Mapping[str, Tensor]
) -> dict[str, NDArray[np.float32]]:
    """Return what PyTorch gives for the outputs of a kind of graph, by name, from plain attention."""
    return run_reference(encoder, kind, inputs)[1]


def run_reference(
    encoder: Encoder, kind: GraphKind, inputs: Mapping[str, Tensor]
) -> tuple[ForwardPass, dict[str, NDArray[np.float32]]]:
    """Return PyTorch's forward pass, with plain attention, and the outputs by name."""
    with torch.inference_mode():
        run = run_forward(
            encoder,
            inputs,
            explicit=range(encoder.config.layers),
            norm_maps=norm_maps_of(encoder, compact=False),
        )
        values = (*run.outputs, *kind.compute(encoder.config, inputs, run))
    specs = outputs_of(encoder.config, kind)
    return run, {spec.name: value.numpy() for spec, value in zip(specs, values, strict=True)}


def _feed(spec: ManifestTensor, value: Tensor) -> NDArray[Any]:
    """Return an input as a server feeds it: one value for each sequence where a mask was left out."""
    if spec.broadcasts and value.all():
        value = value[(slice(None), *[slice(1)] * (value.ndim - 1))]
    return value.numpy()


def open_session(path: Path) -> ort.InferenceSession:
    """Open a graph on the CPU, which must have kernels for it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
