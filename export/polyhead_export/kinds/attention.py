"""The attention graph: weights of all layers, or of chosen ones, whose attention is explicit."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from polyhead_export.forward_pass import ForwardPass
from polyhead_export.signature import GraphKind, key_axis
from polyhead_model import EncoderConfig
from polyhead_model.pruning import stack_layers
from polyhead_proto.tensors import TensorSpec


class AttentionGraph(GraphKind):
    """Attention weights, and the norms of the values that they weigh."""

    name: ClassVar[str] = "attention"
    file: ClassVar[str] = "attention.onnx"

    def explicit_layers(self, config: EncoderConfig) -> Sequence[int]:
        """Return the layers whose weights are outputs."""
        return range(config.layers) if self.attention_layers is None else self.attention_layers

    def sizes(self, config: EncoderConfig) -> Mapping[str, int]:
        """Return the number of chosen layers, and the numbers of heads that pruning left."""
        counts = {len(config.heads_of(layer)) for layer in self.explicit_layers(config)} - {config.heads}
        chosen = {} if self.attention_layers is None else {"A": len(self.attention_layers)}
        return chosen | {f"H{count}": count for count in sorted(counts)}

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `attention.0` … and `value_norms`, and of decoder blocks those of cross-attention."""
        outputs = self._outputs_of(config, "", key_axis(config))
        if config.cross_attention == "after_self":
            outputs += self._outputs_of(config, "cross_", "S")
        return outputs

    def _outputs_of(self, config: EncoderConfig, prefix: str, keys: str) -> tuple[TensorSpec, ...]:
        """Return the outputs of one attention of each layer, with keys along this axis."""
        layers = self.explicit_layers(config)
        return (
            *(
                TensorSpec(
                    name=f"{prefix}attention.{layer}",
                    datatype="FP32",
                    axes=("B", "H" if len(heads) == config.heads else f"H{len(heads)}", "T", keys),
                    role=f"{prefix}attention",
                    layer=layer,
                    heads=None if len(heads) == config.heads else tuple(heads),
                )
                for layer in layers
                for heads in [config.heads_of(layer)]
            ),
            TensorSpec(
                name=f"{prefix}value_norms",
                datatype="FP32",
                axes=("B", "L" if self.attention_layers is None else "A", "H", keys),
                role=f"{prefix}value_norms",
                layers=tuple(layers),
            ),
        )

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Return the weights of each layer, and the norms of all of them together."""
        layers = self.explicit_layers(config)
        kept = [config.heads_of(layer) for layer in layers]
        outputs: list[Tensor] = []
        for attention in (run, run.cross):
            if attention is not None:
                outputs += (attention.weights[layer] for layer in layers)
                norms = [attention.value_norms(layer) for layer in layers]
                outputs.append(stack_layers(norms, kept, config.heads))
        return tuple(outputs)
