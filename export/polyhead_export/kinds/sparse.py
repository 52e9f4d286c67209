"""The sparse graph: which words of the vocabulary say most of a text, and how much (SPLADE).

Nearly all of V weights are zero, so the graph returns the largest, and none of the others leaves it. Shape
letters: B batch, V vocabulary.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from polyhead_export.forward_pass import ForwardPass
from polyhead_export.signature import Array, GraphKind
from polyhead_model import EncoderConfig
from polyhead_proto.tensors import TensorSpec

WORDS = 1024
"""The most words of a text that are returned: more than sparse encoders are trained to find in one."""


class SparseGraph(GraphKind):
    """The vectors of tokens, and sparse vectors."""

    name: ClassVar[str] = "sparse"
    file: ClassVar[str] = "sparse.onnx"

    def sizes(self, config: EncoderConfig) -> Mapping[str, int]:
        """Return the number of words."""
        return {"TopWords": min(WORDS, config.vocabulary or 1)}

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `sparse_indices` and `sparse_values`."""
        return tuple(
            TensorSpec(name=name, datatype=datatype, axes=("B", "TopWords"), role=name)
            for name, datatype in (("sparse_indices", "INT32"), ("sparse_values", "FP32"))
        )

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Return token ids and their weights, the largest first; -1 and 0 where there are fewer."""
        values, words = run.weigh_words().topk(self.sizes(config)["TopWords"], dim=1)
        return torch.where(values > 0, words, -1).to(torch.int32), values

    def align(
        self,
        config: EncoderConfig,
        actual: Mapping[str, Array],
        expected: Mapping[str, Array],
        run: ForwardPass,
    ) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """Judge words with their weights, by what the reference gives them: rounding decides between two."""
        ours, theirs = dict(actual), dict(expected)
        del theirs["sparse_indices"]
        words = ours.pop("sparse_indices").astype(np.int64)
        ordered = np.sort(words, axis=-1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        with torch.inference_mode():
            weights = run.weigh_words().numpy()
        if repeated.any() or words.max() >= weights.shape[1]:
            there = np.full(words.shape, np.inf)
        else:
            there = np.where(words < 0, 0, np.take_along_axis(weights, np.maximum(words, 0), axis=1))
        ours["sparse_values"] = np.stack((ours["sparse_values"], there))
        theirs["sparse_values"] = np.stack((theirs["sparse_values"],) * 2)
        return ours, theirs
