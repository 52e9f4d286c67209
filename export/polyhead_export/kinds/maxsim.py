"""The MaxSim graph: how similar each token of a query is to the tokens of documents (late interaction).

Khattab & Zaharia 2020, "ColBERT", arXiv 2004.12832: a document's score is the sum, over the query's tokens,
of the largest cosine with one of its own. Shape letters: B batch, T tokens, S tokens of the query, V width
of token vectors.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from polyhead_export.forward_pass import ForwardPass
from polyhead_export.signature import GraphKind
from polyhead_model import EncoderConfig, masks
from polyhead_proto.tensors import TensorSpec

_NOT_COMPARED = -1.0
"""The similarity of opposite vectors, which stands for that with a token that is not compared."""


class MaxSimGraph(GraphKind):
    """The similarity of documents with a query whose vectors are given, so that theirs need not be sent."""

    name: ClassVar[str] = "maxsim"
    file: ClassVar[str] = "maxsim.onnx"

    def map_axes(self, config: EncoderConfig) -> tuple[tuple[str, str], ...]:
        """Return those of attention, and of similarities."""
        return (("T", "T"), ("T", "S"))

    def inputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `query_vectors` and `query_lengths`."""
        return (
            TensorSpec(
                name="query_vectors",
                datatype="FP32",
                axes=("B", "S", "V"),
                role="query_vectors",
                range=(None, None),
            ),
            TensorSpec(name="query_lengths", datatype="INT32", axes=("B",), role="query_lengths", fill="S"),
        )

    def outputs(self, config: EncoderConfig) -> tuple[TensorSpec, ...]:
        """Return `max_similarities` and `similarities`."""
        return (
            TensorSpec(name="max_similarities", datatype="FP32", axes=("B", "S"), role="max_similarities"),
            TensorSpec(name="similarities", datatype="FP32", axes=("B", "S", "T"), role="similarities"),
        )

    def samples(
        self, config: EncoderConfig, batch: int, tokens: int, random: torch.Generator
    ) -> Mapping[str, Tensor]:
        """Return random vectors of length 1, of more tokens than documents have or fewer."""
        count = tokens // 2 + 2
        vectors = torch.randn(batch, count, config.token_vector_size, generator=random)
        lengths = torch.randint(count + 1, (batch,), generator=random, dtype=torch.int32)
        lengths[0] = count
        return {
            "query_vectors": torch.nn.functional.normalize(vectors, dim=-1),
            "query_lengths": lengths,
        }

    def compute(
        self, config: EncoderConfig, inputs: Mapping[str, Tensor], run: ForwardPass
    ) -> tuple[Tensor, ...]:
        """Compare the vectors; a document without any token to compare is similar to nothing, 0.

        Both outputs are 0 in padding.
        """
        head = config.token_vectors
        if head is None or run.token_vectors is None:
            raise ValueError("config.token_vectors must be given for a graph of similarities, was None")
        queries = inputs["query_vectors"]
        compared = run.valid
        for number in head.skipped_ids:
            compared = compared & (inputs[config.main_input] != number)
        if head.skips_first:
            compared = compared & (torch.arange(compared.shape[1], device=compared.device) > 0)
        asked = masks.valid_tokens(inputs["query_lengths"], queries.shape[1])  # [B, S]
        products = queries @ run.token_vectors.transpose(1, 2)  # [B, S, T]
        # The query's vectors may be of any length, so that products may be less than -1.
        lowest = torch.finfo(products.dtype).min
        largest = torch.where(compared[:, None], products, lowest).amax(-1)
        largest = torch.where(asked & compared.any(1, keepdim=True), largest, 0)
        similar = torch.where(compared[:, None], products, _NOT_COMPARED)
        return largest, torch.where(asked[..., None] & run.valid[:, None], similar, 0)
