"""Compare exported graphs with PyTorch, at sizes that the exporter has not seen and with ragged lengths."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead_export.arithmetic import Reordered, Widened
from polyhead_export.comparison import Change, Closeness, Total, check_parity
from polyhead_export.constants import norm_maps_of
from polyhead_export.errors import ParityError
from polyhead_export.evaluation import evaluate
from polyhead_export.forward_pass import ForwardPass, run_forward
from polyhead_export.graphs import TRACED_SIZE
from polyhead_export.samples import sample_inputs
from polyhead_export.signature import GraphKind, compute_outputs, inputs_of, outputs_of
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto.tensors import TensorSpec

Array = NDArray[Any]
Run: TypeAlias = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Array]]
"""Runs a graph: names of outputs and the inputs in, the outputs out."""

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
class Judged:
    """What was measured of one graph."""

    outputs: dict[str, Closeness]
    """Each output; scores of heads one by one, and keys with their weights."""
    drift: dict[str, float] | None = None
    """The largest deviation of each output from fp32; None in fp32."""
    cosines: dict[str, Cosine] | None = None
    """Of each output of vectors."""


class Judge(Protocol):
    """Compares the graphs of a family with PyTorch."""

    def judge(self, kind: GraphKind) -> Judged:
        """Measure a graph.

        Raises:
            ParityError: It does not compute what PyTorch does, or drifts too far from fp32.
        """

    def drift(self, judged: Mapping[str, Judged]) -> Drift | None:
        """Return the drift of graphs that were judged, by name; None in fp32."""


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The measured agreement of a family's graphs with PyTorch."""

    sizes: tuple[tuple[int, int], ...]
    """The sizes (B, T) that were compared."""
    outputs: dict[str, dict[str, Closeness]]
    """Each output, by graph; scores of heads one by one, and keys with their weights."""
    neighbours: dict[str, dict[str, Change]]
    """What a sequence's neighbours in a batch change of each output of floats, by graph."""
    drift: Drift | None = None
    """None in fp32."""

    @property
    def worst(self) -> Closeness:
        """The output that is closest to its limit, or furthest above."""
        every = (each for outputs in self.outputs.values() for each in outputs.values())
        return max(every, key=lambda each: each.excess)


def compared_sizes(config: EncoderConfig) -> tuple[tuple[int, int], ...]:
    """Return the sizes (B, T) at which this encoder's graphs are compared."""
    return tuple(
        (batch, tokens)
        for batch, tokens in _SIZES
        if (batch, tokens) != TRACED_SIZE and (config.positions is None or tokens <= config.positions)
    )


class JudgeInFp32:
    """Compares fp32 graphs with PyTorch.

    Args:
        encoder: The encoder that the graphs were exported from.
        folder: Holds the graphs as they will be served, and their weights.
    """

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self._reference = Reference(encoder)
        self._folder = folder

    def judge(self, kind: GraphKind) -> Judged:
        """Compare a graph."""
        file = self._folder / kind.file
        outputs = self._reference.compare(file, kind, ir.load(file))
        check_parity(outputs, kind.file)
        return Judged(outputs=outputs)

    def drift(self, judged: Mapping[str, Judged]) -> None:
        """Return nothing."""


class Reference:
    """What PyTorch computes of an encoder, on the same inputs for every graph: in float64, and often in fp32.

    Args:
        encoder: The encoder; it stays in its precision, whose numbers are widened where they are used.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        # Views of the weights: in float64 they would be copies, and of 16 bits they are.
        self._norm_maps = norm_maps_of(encoder, compact=False)
        self._passes: dict[tuple[int, bool], list[ForwardPass]] = {}

    def compare(
        self,
        file: Path,
        kind: GraphKind,
        model: ir.Model | None,
        *,
        opened: Callable[[Path], Run] = lambda file: open_session(file).run,
    ) -> dict[str, Closeness]:
        """Compare a graph with PyTorch, over all `compared_sizes`.

        Args:
            file: The graph, for onnxruntime.
            kind: The graph's kind.
            model: The graph, to be evaluated in float64; None if its own rounding is what counts.
            opened: Opens the graph where it is to run; by default on the CPU.

        Raises:
            ParityError: An output does not have the shape of PyTorch's, or a node indexes outside its inputs.
        """
        graph, pytorch, wiring = (defaultdict[str, Total](Total) for _ in range(3))
        names = [spec.name for spec in outputs_of(self._encoder.config, kind)]
        if model is not None:  # before there is a session, whose memory comes on top
            for feeds, (exact,) in self._samples(kind, _ARITHMETICS[:1]):
                try:
                    outputs = dict(zip(names, evaluate(model, names, feeds), strict=True))
                except IndexError as error:
                    raise ParityError(
                        f"{kind.file}: every node must index within its inputs, but {error}"
                    ) from error
                self._add(wiring, outputs, exact, kind)
        run = opened(file)
        for feeds, (exact, *rounded) in self._samples(kind, _ARITHMETICS):
            outputs = dict(zip(names, run(names, feeds), strict=True))
            self._add(graph, outputs, exact, kind)
            for each in rounded:
                self._add(pytorch, each.outputs, exact, kind)
        return {
            name: Closeness(
                graph=graph[name].errors,
                pytorch=pytorch[name].errors,
                wiring=wiring[name].errors if name in wiring else None,
            )
            for name in graph
        }

    def _samples(
        self, kind: GraphKind, arithmetics: Sequence["_Arithmetic"]
    ) -> Iterator[tuple[dict[str, Array], list["_Computed"]]]:
        """Yield what a graph is fed, and PyTorch's results in each of the first arithmetics."""
        config = self._encoder.config
        for seed, size in enumerate(compared_sizes(config), start=1):
            inputs = sample_inputs(config, kind, *size, seed=seed)
            key = (seed, kind.intervenes)
            if key not in self._passes:  # graphs differ in what they make of it
                self._passes[key] = [
                    _forward(self._encoder, kind, inputs, self._norm_maps, each) for each in _ARITHMETICS
                ]
            feeds = {spec.name: _feed(spec, inputs[spec.name]) for spec in inputs_of(config, kind)}
            yield (
                feeds,
                [
                    _Computed(run, _outputs(config, kind, inputs, run, arithmetic))
                    for run, arithmetic in zip(self._passes[key], arithmetics, strict=False)
                ],
            )

    def _add(
        self, totals: dict[str, Total], outputs: Mapping[str, Array], exact: "_Computed", kind: GraphKind
    ) -> None:
        """Add the errors of outputs."""
        for name, got in outputs.items():
            if got.shape != exact.outputs[name].shape:
                raise ParityError(
                    f"{kind.file}: {name!r} has shape {got.shape}, PyTorch gives {exact.outputs[name].shape} "
                    f"at (B, T) = {tuple(exact.forward.output.shape[:2])}"
                )
        ours, theirs = kind.align(self._encoder.config, outputs, exact.outputs, exact.forward)
        for name, values in ours.items():
            totals[name].add(values, theirs[name])


class _Computed(NamedTuple):
    """What PyTorch gives."""

    forward: ForwardPass
    outputs: dict[str, Array]


def reference_outputs(
    encoder: Encoder, kind: GraphKind, inputs: Mapping[str, Tensor]
) -> dict[str, NDArray[np.float32]]:
    """Return what PyTorch gives for the outputs of a kind of graph, by name, from plain attention."""
    return run_reference(encoder, kind, inputs)[1]


def run_reference(
    encoder: Encoder, kind: GraphKind, inputs: Mapping[str, Tensor]
) -> tuple[ForwardPass, dict[str, NDArray[np.float32]]]:
    """Return PyTorch's forward pass, with plain attention, and the outputs by name."""
    run = _forward(encoder, kind, inputs, norm_maps_of(encoder, compact=False), _FP32)
    return run, _outputs(encoder.config, kind, inputs, run, _FP32)


def _forward(
    encoder: Encoder,
    kind: GraphKind,
    inputs: Mapping[str, Tensor],
    norm_maps: Sequence[Tensor],
    arithmetic: "_Arithmetic",
) -> ForwardPass:
    explicit = range(encoder.config.layers)
    with arithmetic.applied():
        return run_forward(
            encoder, inputs, explicit=explicit, norm_maps=norm_maps, intervenes=kind.intervenes
        )


def _outputs(
    config: EncoderConfig,
    kind: GraphKind,
    inputs: Mapping[str, Tensor],
    run: ForwardPass,
    arithmetic: "_Arithmetic",
) -> dict[str, Array]:
    with arithmetic.applied():
        values = compute_outputs(config, kind, inputs, run)
    return {spec.name: value.numpy() for spec, value in zip(outputs_of(config, kind), values, strict=True)}


@dataclass(frozen=True)
class _Arithmetic:
    """How PyTorch computes."""

    dtype: torch.dtype
    order: int | None = None
    """A seed: the terms of matrix products are added up in another order."""

    def applied(self) -> ExitStack:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(Widened(self.dtype))
            if self.order is not None:
                stack.enter_context(Reordered(self.order))
            return stack.pop_all()


_FP32 = _Arithmetic(torch.float32)
_ARITHMETICS = (_Arithmetic(torch.float64), _FP32, *(_Arithmetic(torch.float32, seed) for seed in range(2)))


def _feed(spec: TensorSpec, value: Tensor) -> NDArray[Any]:
    """Return an input as a server feeds it: one value for each sequence where a mask was left out."""
    if spec.broadcasts and value.all():
        value = value[(slice(None), *[slice(1)] * (value.ndim - 1))]
    return value.numpy()


def open_session(path: Path) -> ort.InferenceSession:
    """Open a graph on the CPU, which must have kernels for it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
