"""The inputs and outputs of a family's graphs: names, datatypes, axes and roles.

Shape letters: B batch, T tokens, N tokens of a batch that exist, S tokens of the memory, D d_model, H heads,
K head width, L layers, A chosen layers, R rows asked for, P width of pooled vectors behind dense layers, V
width of token vectors, C labels.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyhead_export.attention_ops import needs_no_mask
from polyhead_export.forward_pass import ForwardPass
from polyhead_export.packed_attention import WIDTHS, attends_packed
from polyhead_export.precision import IN_16_BITS, Precision
from polyhead_model import EncoderConfig
from polyhead_model.insight.token_classes import TokenClass
from polyhead_proto.tensors import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

_ALL_WEIGHTS = frozenset({"attention", "cross_attention"})


@dataclass(frozen=True, kw_only=True)
class GraphKind:
    """One kind of graph that a family is exported as: what it takes, gives and computes.

    A kind overrides what it has beyond the fast graph.
    """

    name: ClassVar[str]
    file: ClassVar[str]
    masks_by_bias: ClassVar[bool] = False
    """Explicit attention is masked before the softmax alone, which is cheaper; see `ForwardPass.weights`."""
    pooled_only: ClassVar[bool] = False
    """There is no output of tokens, and the last layer is computed for those that are pooled alone."""
    intervenes: ClassVar[bool] = False
    """Its inputs change what layers compute, so that its forward pass is no other kind's."""
    attention_layers: tuple[int, ...] | None = None
    """The layers whose attention the export is asked for, ascending; None = all."""
    token_classes: tuple[TokenClass, ...] = ()
    """What is known of the tokens, from the family's tokenizer."""

    def explicit_layers(self, config: EncoderConfig) -> Collection[int]:
        """Return the layers that compute attention explicitly, and have weights; the others are fused."""
        return ()

    def side_layers(self, config: EncoderConfig) -> Collection[int]:
        """Return the layers that, beside attention, compute a softmax from their queries and keys."""
        return ()

    def sizes(self, config: EncoderConfig) -> Mapping[str, int]:
        """Return the sizes of fixed axes that no other kind has, by letter."""
        return {}

    def maps(self, config: EncoderConfig, precision: Precision = "fp32") -> int:
        """Return how many values [T, keys] a run holds at once for each sequence, besides its outputs."""
        explicit = self.explicit_layers(config) and not self.pooled_only
        if precision in IN_16_BITS and not explicit and config.head_size % WIDTHS == 0:
            return _MAPS_OF_LONG + bias_maps(config)
        if packs(config, precision) and needs_no_mask(config) and not explicit:
            return _MAPS_OF_LONG
        return 2 * config.heads + bias_maps(config)

    def map_axes(self, config: EncoderConfig) -> tuple[tuple[str, str], ...] | None:
        """Return the axes of those values, the largest of which counts; None: [T, T] alone."""
        if config.cross_attention is None:
            return None
        return (("T", "S"),) if config.cross_attention == "alone" else (("T", "T"), ("T", "S"))

    def inputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return the inputs beyond those of the fast graph, in order."""
        return ()

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return the outputs beyond those of the fast graph, in order."""
        return ()

    def samples(
        self, config: EncoderConfig, batch: int, tokens: int, random: torch.Generator
    ) -> Mapping[str, Tensor]:
        """Return random values of `inputs`, by name."""
        return {}

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Compute `outputs`. Called for the traced graph, and for the reference that it is compared with.

        Args:
            config: The encoder's configuration.
            inputs: Every input of the graph, by name.
            run: The encoder's forward pass. In the graph, it has the weights of `explicit_layers`; in the
                reference, of all layers.
        """
        return ()

    def align(
        self,
        config: EncoderConfig,
        actual: Mapping[str, Array],
        expected: Mapping[str, Array],
        run: ForwardPass,
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """Make outputs comparable as numbers, where the same result can be written in several ways.

        Each array that is returned is judged by itself.

        Args:
            config: The encoder's configuration.
            actual: The graph's outputs, by name.
            expected: The reference's.
            run: The reference's forward pass.
        """
        return actual, expected


def compute_outputs(
    config: EncoderConfig, kind: GraphKind, inputs: Mapping[str, Tensor], run: ForwardPass
) -> tuple[Tensor, ...]:
    """Compute the outputs of a graph of this kind, in the order of `outputs_of`; see `GraphKind.compute`."""
    tokens = () if kind.pooled_only else (run.output, run.token_vectors)
    every = (each for each in (*tokens, run.pooled, run.class_logits) if each is not None)
    return (*every, *kind.compute(config, inputs, run))


_MAPS_OF_LONG = 4
"""What graphs without any such value are taken to hold, as they hold more of [T, D] than others."""


def packs(config: EncoderConfig, precision: Precision) -> bool:
    """Return whether layers are computed for the N tokens of a batch that exist, not for B·T places.

    Attention alone costs too little for that in fp32: between its operator and padded inputs and outputs,
    tokens would be moved more often than computed with. In 16 bits, attention itself must take packed tokens.
    """
    if precision in IN_16_BITS:
        return precision == "fp16" and attends_packed(config)
    return config.feed_forward is not None


def activations(config: EncoderConfig, precision: Precision) -> tuple[str, ...]:
    """Return the axes of what layers compute."""
    return ("N", "D") if packs(config, precision) else ("B", "T", "D")


def bias_maps(config: EncoderConfig) -> int:
    """Return how many values [T, T] are held at once of what is added to scores: a window, positions."""
    window = 0 if config.local_window is None else 2
    # Of a layer's two products with positions [T, 2T], one is there as it is, and moved into place.
    products = 0 if config.disentangled is None else 6 * config.heads
    return window + products + (0 if config.relative_buckets is None else config.heads + 4)


def axis_sizes(config: EncoderConfig, kinds: Collection[GraphKind] = ()) -> dict[str, int]:
    """Return the sizes of the fixed axes, by letter, of graphs of these kinds."""
    sizes = {"D": config.d_model, "H": config.heads, "L": config.layers}
    if config.dense or config.truncate_dim:
        sizes["P"] = config.pooled_size
    if config.token_vectors is not None:
        sizes["V"] = config.token_vector_size
    if config.classifier is not None:
        sizes["C"] = len(config.classifier.labels)
    for kind in kinds:
        sizes |= kind.sizes(config)
    return sizes


def inputs_of(config: EncoderConfig, kind: GraphKind) -> tuple[TensorSpec, ...]:
    """Return the inputs of the family's graph of this kind, in order."""
    main, tokens = config.main_input, ("B", "T")
    if config.vocabulary is None:
        inputs = [TensorSpec(name=main, datatype="FP32", axes=("B", "T", "D"))]
    else:
        inputs = [
            TensorSpec(name=main, datatype="INT64", axes=tokens, role="tokens", below=config.vocabulary)
        ]
        if config.types:
            inputs.append(
                TensorSpec(
                    name="token_type_ids",
                    datatype="INT64",
                    axes=tokens,
                    role="types",
                    fill=0,
                    below=config.types,
                )
            )
    if config.cross_attention is not None:
        inputs.append(TensorSpec(name="memory", datatype="FP32", axes=("B", "S", "D"), role="memory"))
    # int32, because the fused attention kernels read that.
    inputs.append(TensorSpec(name="lengths", datatype="INT32", axes=("B",), role="lengths", fill="T"))
    if config.cross_attention is not None:
        inputs.append(
            TensorSpec(name="memory_lengths", datatype="INT32", axes=("B",), role="memory_lengths", fill="S")
        )
    if config.mask_input and config.cross_attention != "alone":
        inputs.append(_mask("mask", "T"))
    if config.mask_input and config.cross_attention is not None:
        inputs.append(_mask("memory_mask", "S"))
    if config.head_mask_input:
        inputs.append(
            TensorSpec(
                name="head_mask",
                datatype="FP32",
                axes=("B", "L", "H"),
                role="head_mask",
                fill=1.0,
                range=(0.0, 1.0),
            )
        )
    return (*inputs, *kind.inputs(config))


def _mask(name: str, keys: str) -> TensorSpec:
    return TensorSpec(
        name=name, datatype="BOOL", axes=("B", "T", keys), role=name, fill=True, broadcasts=True
    )


def key_axis(config: EncoderConfig) -> str:
    """Return the letter of the keys of each layer's first attention."""
    return "S" if config.cross_attention == "alone" else "T"


def outputs_of(
    config: EncoderConfig, kind: GraphKind, precision: Precision = "fp32"
) -> tuple[TensorSpec, ...]:
    """Return the outputs of the family's graph of this kind, in order.

    Nothing has as many bytes as all weights of attention, so that graphs in 16 bits give them as they are.
    """
    if precision in IN_16_BITS:
        return tuple(
            replace(spec, datatype="FP16") if spec.role in _ALL_WEIGHTS else spec
            for spec in outputs_of(config, kind)
        )
    outputs = []
    if not kind.pooled_only:
        outputs.append(TensorSpec(name="output", datatype="FP32", axes=("B", "T", "D")))
        if config.token_vectors is not None:
            outputs.append(
                TensorSpec(name="token_vectors", datatype="FP32", axes=("B", "T", "V"), role="token_vectors")
            )
    if config.pooling is not None:
        axes = ("B", "P" if config.dense or config.truncate_dim else "D")
        outputs.append(TensorSpec(name="pooled", datatype="FP32", axes=axes, role="pooled"))
    if config.classifier is not None:
        outputs.append(
            TensorSpec(
                name="logits",
                datatype="FP32",
                axes=("B", "C") if config.classifier.pooling else ("B", "T", "C"),
                role="logits",
                labels=config.classifier.labels,
                scores=config.classifier.score_activation,
                activation=config.classifier.activation,
            )
        )
    return (*outputs, *kind.outputs(config))
