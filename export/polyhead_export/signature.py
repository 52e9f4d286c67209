"""The inputs and outputs of a family's graphs: names, datatypes, axes and roles.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from polyhead_model import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class ManifestTensor:
    """One input or output, as the manifest describes it (docs/model-repository.md)."""

    name: str
    datatype: str
    axes: tuple[str, ...]
    role: str | None = None
    fill: str | bool | int | None = None
    below: int | None = None
    layer: int | None = None

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the size of each axis; -1 where it varies."""
        return tuple(sizes.get(letter, -1) for letter in self.axes)


@dataclass(frozen=True, kw_only=True)
class GraphKind:
    """One kind of graph that a family is exported as."""

    name: str
    file: str
    weights: bool
    """The graph returns attention weights."""


FAST = GraphKind(name="fast", file="model.onnx", weights=False)
ATTENTION = GraphKind(name="attention", file="attention.onnx", weights=True)
GRAPH_KINDS = (FAST, ATTENTION)


def axis_sizes(config: EncoderConfig) -> dict[str, int]:
    """Return the sizes of the fixed axes, by letter."""
    return {"D": config.d_model, "H": config.heads}


def inputs_of(config: EncoderConfig) -> tuple[ManifestTensor, ...]:
    """Return the inputs of every graph of the family, in order."""
    if config.vocabulary is None:
        inputs = [ManifestTensor(name="x", datatype="FP32", axes=("B", "T", "D"))]
    else:
        tokens = ("B", "T")
        inputs = [
            ManifestTensor(
                name="input_ids", datatype="INT64", axes=tokens, role="tokens", below=config.vocabulary
            )
        ]
        if config.types:
            inputs.append(
                ManifestTensor(
                    name="token_type_ids",
                    datatype="INT64",
                    axes=tokens,
                    role="types",
                    fill=0,
                    below=config.types,
                )
            )
    # int32, because the fused attention kernels read that.
    inputs.append(ManifestTensor(name="lengths", datatype="INT32", axes=("B",), role="lengths", fill="T"))
    if config.mask_input:
        inputs.append(
            ManifestTensor(name="mask", datatype="BOOL", axes=("B", "T", "T"), role="mask", fill=True)
        )
    return tuple(inputs)


def outputs_of(config: EncoderConfig, kind: GraphKind) -> tuple[ManifestTensor, ...]:
    """Return the outputs of the family's graph of this kind, in order."""
    outputs = [ManifestTensor(name="output", datatype="FP32", axes=("B", "T", "D"))]
    if config.pooling is not None:
        outputs.append(ManifestTensor(name="pooled", datatype="FP32", axes=("B", "D"), role="pooled"))
    if kind.weights:
        outputs += [
            ManifestTensor(
                name=f"attention.{layer}",
                datatype="FP32",
                axes=("B", "H", "T", "T"),
                role="attention",
                layer=layer,
            )
            for layer in range(config.layers)
        ]
    return tuple(outputs)
