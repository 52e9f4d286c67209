"""What a family's graphs take and give: names, datatypes, shapes.

Shape letters: B batch, T tokens, D d_model, H heads. -1 stands for a size that varies.
"""

from dataclasses import dataclass

from polyhead_model import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output, in the wire protocol's terms."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GraphKind:
    """One of the graphs that a family is exported as."""

    name: str
    file: str
    weights: bool
    """The graph returns attention weights."""


FAST = GraphKind(name="fast", file="model.onnx", weights=False)
ATTENTION = GraphKind(name="attention", file="attention.onnx", weights=True)
GRAPH_KINDS = (FAST, ATTENTION)


def inputs_of(config: EncoderConfig) -> tuple[TensorSpec, ...]:
    """The inputs of every graph of the family, in order."""
    if config.vocabulary is None:
        inputs = [TensorSpec(name="x", datatype="FP32", shape=(-1, -1, config.d_model))]
    else:
        inputs = [TensorSpec(name="input_ids", datatype="INT64", shape=(-1, -1))]
        if config.types:
            inputs.append(TensorSpec(name="token_type_ids", datatype="INT64", shape=(-1, -1)))
    # 32 bits, because that is what the fused attention kernels read.
    inputs.append(TensorSpec(name="lengths", datatype="INT32", shape=(-1,)))
    if config.mask_input:
        inputs.append(TensorSpec(name="mask", datatype="BOOL", shape=(-1, -1, -1)))
    return tuple(inputs)


def outputs_of(config: EncoderConfig, kind: GraphKind) -> tuple[TensorSpec, ...]:
    """The outputs of the family's graph of this kind, in order."""
    outputs = [TensorSpec(name="output", datatype="FP32", shape=(-1, -1, config.d_model))]
    if config.pooling is not None:
        outputs.append(TensorSpec(name="pooled", datatype="FP32", shape=(-1, config.d_model)))
    if kind.weights:
        outputs += [
            TensorSpec(name=f"attention.{layer}", datatype="FP32", shape=(-1, config.heads, -1, -1))
            for layer in range(config.layers)
        ]
    return tuple(outputs)
