"""The contacts graph: which residues of a protein touch, by a regression on the attention of all heads.

Rao et al. 2020, "Transformer protein language models are unsupervised structure learners": each head's map is
made symmetric, corrected for what its rows and columns have in common (average product correction), and
weighed. Shape letters: B batch, T tokens, H heads, L layers.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from polyhead_export.forward_pass import ForwardPass
from polyhead_export.precision import Precision
from polyhead_export.signature import GraphKind, bias_maps
from polyhead_model import EncoderConfig
from polyhead_model.sums import sum_last
from polyhead_proto.tensors import TensorSpec


class ContactsGraph(GraphKind):
    """The probability of a contact of each pair of tokens, which the attention of all heads never leaves."""

    name: ClassVar[str] = "contacts"
    file: ClassVar[str] = "contacts.onnx"

    def explicit_layers(self, config: EncoderConfig) -> Sequence[int]:
        """Return all layers: the regression takes them all."""
        return range(config.layers)

    def maps(self, config: EncoderConfig, precision: Precision = "fp32") -> int:
        """Count one layer's logits and weights, and three values made of them."""
        return 5 * config.heads + bias_maps(config)

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `contacts`."""
        return (TensorSpec(name="contacts", datatype="FP32", axes=("B", "T", "T"), role="contacts"),)

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Return the probabilities; zero for the first token, the end and padding."""
        head = config.contacts
        if head is None:
            raise ValueError("config.contacts must be given for a graph of contacts, was None")
        ids = inputs[config.main_input]
        inner = run.valid & (ids != head.end_id) & (torch.arange(ids.shape[1]) > 0)
        pairs = inner[:, :, None] & inner[:, None, :]  # [B, T, T]
        logits = torch.full_like(run.weights[0][:, 0], head.bias)
        for layer in self.explicit_layers(config):
            numbers = [layer * config.heads + number for number in config.heads_of(layer)]
            factors = torch.tensor([[head.weights[number] for number in numbers]])
            maps = torch.where(pairs[:, None], run.weights[layer], 0)
            maps = maps + maps.transpose(-1, -2)
            rows = sum_last(maps)
            # A map of nothing has nothing in common either.
            total = sum_last(rows.expand(-1, -1, -1, 2).transpose(-1, -2))[:, :, :1]
            total = total.clamp(min=torch.finfo(torch.float32).tiny)
            corrected = maps - rows * rows.transpose(-1, -2) / total
            logits = logits + (factors @ corrected.flatten(2)).reshape(logits.shape)
        return (torch.where(pairs, torch.sigmoid(logits), 0),)
