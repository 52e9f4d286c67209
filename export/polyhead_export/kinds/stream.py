"""The stream graph: what flows through the layers is read, and edited, at chosen places.

Attention is fused. Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from polyhead_export.forward_pass import ForwardPass
from polyhead_export.interventions import MODES
from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig
from polyhead_proto.tensors import TensorSpec

_WIDTHS = {"": "D", "head_": "K"}
"""The axis of the vectors of each kind of place, by the prefix of its tensors."""


class StreamGraph(GraphKind):
    """The residual stream before each layer and after the last, and each head's output before W_O."""

    name: ClassVar[str] = "stream"
    file: ClassVar[str] = "stream.onnx"
    intervenes: ClassVar[bool] = True

    def sizes(self, config: EncoderConfig) -> Mapping[str, int]:
        """Return K."""
        return {"K": config.head_size}

    def inputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return the places to read and to edit, and the edits; all may be left out.

        Zeros, with which requests that share a batch are padded, are no edit.
        """
        inputs: list[TensorSpec] = []
        for what, axis in (("read", "Reads"), ("edit", "Edits")):
            for prefix, width in _WIDTHS.items():
                letter = "Head" + axis if prefix else axis

                def along(
                    name: str, below: int | str, *, start: str = prefix + what, of: str = letter
                ) -> None:
                    inputs.append(
                        TensorSpec(
                            name=f"{start}_{name}",
                            datatype="INT64",
                            axes=("B", of),
                            role=f"{start}_{name}",
                            fill=0,
                            below=below,
                        )
                    )

                along("layers", config.layers if prefix else config.layers + 1)
                along("tokens", "T")
                if prefix:
                    along("heads", config.heads)
                if what == "edit":
                    along("modes", MODES)
                    inputs.append(
                        TensorSpec(
                            name=f"{prefix}edit_vectors",
                            datatype="FP32",
                            axes=("B", letter, width),
                            role=f"{prefix}edit_vectors",
                            fill=0.0,
                            range=(None, None),
                        )
                    )
        return tuple(inputs)

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `stream` and `head_outputs`."""
        return tuple(
            TensorSpec(name=name, datatype="FP32", axes=("B", axis, width), role=name)
            for name, axis, width in (("stream", "Reads", "D"), ("head_outputs", "HeadReads", "K"))
        )

    def samples(
        self, config: EncoderConfig, batch: int, tokens: int, random: torch.Generator
    ) -> Mapping[str, Tensor]:
        """Return random places and edits, the vectors of length 1; one in four is no edit."""
        sizes = {
            "Reads": 4,
            "HeadReads": 3,
            "Edits": 3,
            "HeadEdits": 5,
            "D": config.d_model,
            "K": config.head_size,
        }
        samples = {}
        for spec in self.inputs(config):
            shape = (batch, *(sizes[letter] for letter in spec.axes[1:]))
            if spec.below is not None:
                below = tokens if isinstance(spec.below, str) else spec.below
                samples[spec.name] = torch.randint(below, shape, generator=random)
            else:
                vectors = torch.randn(shape, generator=random)
                samples[spec.name] = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        return samples

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Return what the forward pass has read."""
        if run.interventions is None:
            raise ValueError("run must have interventions, has none")
        return run.interventions.stream, run.interventions.head_outputs
