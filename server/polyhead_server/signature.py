"""What one served model takes and gives on the wire.

Shape letters: B batch, T tokens, D d_model, H heads, L layers. -1 stands for a size that varies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from polyhead_proto.names import LENGTHS, TEXT, TOKENS
from polyhead_server.repository import GraphName, Manifest, Tensor

# The wire may carry what can be turned into the graph's own type without loss.
_ALSO_ACCEPTED: Mapping[str, tuple[str, ...]] = MappingProxyType({"x": ("FP16",), LENGTHS: ("INT64",)})


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output as the wire knows it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    also: tuple[str, ...] = ()
    """Datatypes that an input may have instead."""

    @property
    def is_attention(self) -> bool:
        """It holds attention weights (B, H, T, T), so `heads` and `queries` select from it."""
        return self.name.startswith("attention.")

    @property
    def is_per_sequence(self) -> bool:
        """It holds one value for each sequence: (B)."""
        return len(self.shape) == 1

    @property
    def dims(self) -> tuple[int, ...]:
        """Its shape in Triton's terms: without B, and never empty, so that one value is (1)."""
        return (1,) if self.is_per_sequence else self.shape[1:]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One graph of one version of a family, as it is served."""

    name: str
    version: int
    graph: GraphName
    manifest: Manifest
    primary: str
    """The input that carries the sequences: `x` (B, T, D) or `input_ids` (B, T)."""
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]

    @property
    def attention_layers(self) -> int:
        """How many of the outputs hold attention weights."""
        return sum(spec.is_attention for spec in self.outputs.values())

    @property
    def max_tokens(self) -> int | None:
        """The largest T that the graph itself can take."""
        return self.manifest.limits.max_tokens

    def working_bytes(self, batch: int, tokens: int) -> int:
        """About how much memory a run of this size takes beyond the weights, in bytes.

        Attention counts its scores and weights, (B, H, T, T) each, and every layer's weights where they are
        outputs, asked for or not: onnxruntime computes them all. The rest counts eight (B, T, D) values.
        """
        encoder = self.manifest.encoder
        maps = self.attention_layers + 2
        return 4 * batch * tokens * (maps * encoder.heads * tokens + 8 * encoder.d_model)


def signature_of(manifest: Manifest, graph: GraphName) -> Signature:
    """What the graph of this name (`fast`, `attention`) takes and gives once it is served."""
    primary = "x" if manifest.encoder.vocabulary is None else "input_ids"
    inputs = {}
    for tensor in manifest.inputs:
        optional = tensor.name != primary or manifest.tokenizer is not None
        inputs[tensor.name] = _spec(tensor, optional=optional)
    outputs = {tensor.name: _spec(tensor) for tensor in manifest.graphs[graph].outputs}
    if manifest.tokenizer is not None:
        inputs[TEXT] = TensorSpec(name=TEXT, datatype="BYTES", shape=(-1,), optional=True)
        outputs[TOKENS] = TensorSpec(name=TOKENS, datatype="BYTES", shape=(-1, -1))
    if manifest.encoder.vocabulary is not None:
        outputs[LENGTHS] = TensorSpec(name=LENGTHS, datatype="INT32", shape=(-1,))
    return Signature(
        name=manifest.served_name(graph),
        version=manifest.version,
        graph=graph,
        manifest=manifest,
        primary=primary,
        inputs=MappingProxyType(inputs),
        outputs=MappingProxyType(outputs),
    )


def _spec(tensor: Tensor, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=tuple(tensor.shape),
        optional=optional,
        also=_ALSO_ACCEPTED.get(tensor.name, ()),
    )
