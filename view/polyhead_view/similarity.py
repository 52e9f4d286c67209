"""Explain the similarity of two texts: split the cosine of their vectors, or MaxSim, over pairs of tokens.

Shape letters: T tokens, D d_model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, Encoding, InvalidRequest, ModelInfo
from polyhead_proto.names import TEXT, Property
from polyhead_proto.outputs.token_vectors import TOKEN_VECTORS


class TokenPair(NamedTuple):
    """What one token of each text adds to the similarity."""

    a: int
    """The position in the first text."""
    b: int
    """The position in the second."""
    contribution: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Similarity:
    """The similarity of two texts, and what each pair of tokens adds to it."""

    model: str
    version: str
    value: float
    """The cosine of the pooled vectors, as the server returned them, or MaxSim."""
    contributions: NDArray[np.float64]
    """[T_a, T_b], positive or negative; their sum is the value, within 1e-6 in fp32."""
    tokens: tuple[list[str], list[str]]
    """The tokens of both texts, with special ones such as [CLS] and [SEP]: these count, too."""
    measure: Literal["cosine", "MaxSim"] = "cosine"

    def pairs(self) -> Iterator[TokenPair]:
        """Iterate over the pairs of tokens, from the largest contribution to the smallest."""
        flat = self.contributions.reshape(-1)
        columns = self.contributions.shape[1]
        for at in np.argsort(-flat, kind="stable").tolist():
            yield TokenPair(at // columns, at % columns, float(flat[at]))


def explain_similarity(
    client: Client, a: str, b: str, *, model: str | None = None, truncate: bool = False
) -> Similarity:
    """Split the cosine of two texts' pooled vectors over pairs of tokens; or MaxSim, of late interaction.

    A mean-pooled vector p is the mean of the n rows o_i of the output. So the cosine of two of them is a sum
    over pairs of tokens, Σ_ij o_i·o_j / (n_a n_b ‖p_a‖ ‖p_b‖), with nothing left over.

    The rows are vectors in context: a row also holds what its token gathered from others.

    MaxSim is a sum as it is: each token of the query adds its cosine with one token of the document.

    Args:
        client: A client of the server.
        a: The first text; for MaxSim the query, and b the document.
        b: The second text.
        model: The family; None means the only one that takes texts.
        truncate: Whether to truncate texts that are too long, instead of raising an error.

    Raises:
        InvalidRequest: The family neither pools by the mean nor has a graph of MaxSim, or a text has no
            tokens.
        PolyheadError: The call failed.
    """
    info = client.model(model, takes=TEXT)
    if info.with_role(TOKEN_VECTORS.role) and not info.properties.get(Property.POOLING):
        return _split_maxsim(*client.compare(a, [b], similarities=True, model=info.family, truncate=truncate))
    return split_similarity(client.encode([a, b], model=info.name, truncate=truncate), info)


def _split_maxsim(query: Encoding, documents: Encoding) -> Similarity:
    """Split MaxSim of a query and the only document, as they were compared."""
    document = documents.sequence(0)
    largest = np.asarray(document.max_similarities, np.float64)
    similarities = np.asarray(document.similarities)
    contributions = np.zeros(similarities.shape)
    contributions[np.arange(len(largest)), similarities.argmax(1)] = largest
    tokens: Any = (query.tokens, document.tokens)
    return Similarity(
        model=document.model,
        version=document.version,
        value=float(largest.sum()),
        contributions=contributions,
        tokens=tokens,
        measure="MaxSim",
    )


def split_similarity(encoding: Encoding, info: ModelInfo) -> Similarity:
    """Split the cosine of two texts' pooled vectors over pairs of tokens, as `explain_similarity` does.

    Args:
        encoding: The encoding of both texts, with their outputs, pooled vectors and tokens.
        info: The model that encoded them.

    Raises:
        InvalidRequest: The family does not pool by the mean, or a text has no tokens.
    """
    pooling = info.properties.get(Property.POOLING)
    if pooling != "mean" or encoding.pooled is None:
        way = f"pools by {pooling}" if pooling else "does not pool"
        raise InvalidRequest(
            f"the similarity can be split only for a family that pools by the mean; {info.family} {way}"
        )
    pooled = np.asarray(encoding.pooled, np.float64)
    if not pooled.any(1).all():
        raise InvalidRequest("a and b must have tokens; the vector of a text without any has no direction")
    first, second = (_shares(np.asarray(output, np.float64)) for output in encoding.output)
    return Similarity(
        model=encoding.model,
        version=encoding.version,
        value=_cosine(*pooled),
        contributions=first @ second.T,
        tokens=(list(encoding.tokens[0]), list(encoding.tokens[1])) if encoding.tokens else ([], []),
    )


def _shares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each row adds to the mean of all, scaled to length 1."""
    return rows / (len(rows) * np.linalg.norm(rows.mean(0)))


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
