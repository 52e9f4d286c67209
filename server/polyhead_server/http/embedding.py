"""Vectors of texts, or of token ids: what OpenAI's and TEI's calls have in common.

Shape letters: B inputs.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from polyhead_proto.names import (
    DIMENSIONS,
    INPUT_IDS,
    POOLED,
    PRECISION,
    PROMPT_NAME,
    SPARSE_INDICES,
    SPARSE_VALUES,
    TEXT,
    TOKENS,
    TRUNCATE,
)
from polyhead_proto.outputs.vectors import VectorPrecision
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import answer_list, joined, message_of
from polyhead_server.http.families import cheapest, named, output_of
from polyhead_server.http.fields import Body
from polyhead_server.inference.vectors import ranges_of
from polyhead_server.repository.signature import Signature

DENSE, SPARSE = (POOLED,), (SPARSE_VALUES, SPARSE_INDICES)
"""The roles of the outputs that calls embed with."""


class EmbeddingOptions(Body):
    """What every call that embeds may say."""

    model: str | None = None
    """The family; without, the only one that can do it"""
    truncate: bool | None = None
    """Whether to cut texts that are too long; without, they are rejected"""
    prompt_name: str | None = None
    """The prompt to put before each text"""


def embeds(signature: Signature) -> bool:
    """Return whether a graph is one that embeds: the fast one of a family that pools tokens."""
    return (
        signature.graph == "fast"
        and signature.feed(TOKENS) is not None
        and output_of(signature, POOLED) is not None
    )


def weighs_words(signature: Signature) -> bool:
    """Return whether a graph gives sparse vectors."""
    return output_of(signature, SPARSE_VALUES) is not None


async def embed(
    caller: Caller,
    field: str,
    inputs: Sequence[Any],
    options: EmbeddingOptions,
    *,
    roles: Sequence[str] = DENSE,
    dimensions: int | None = None,
    precision: VectorPrecision | None = None,
) -> tuple[str, list[NDArray[Any]], int]:
    """Embed texts, or lists of token ids.

    Args:
        caller: Asks for it.
        field: What the caller calls the inputs.
        inputs: B texts, or B lists of token ids.
        options: What else the caller says.
        roles: Of the outputs to return.
        dimensions: How many of the first dimensions to return.
        precision: Of integers to return; None: numbers.

    Returns:
        The family, outputs (B, …), and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    can, does = (embeds, "embed") if roles == DENSE else (weighs_words, "weigh words")
    model = named(caller.registry, options.model, can, does)
    signature = cheapest(caller.registry, model, roles)
    outputs = [output_of(signature, role) for role in roles]
    if outputs[0] is None or signature.feed(TOKENS) is None:
        gives = "pools tokens" if roles == DENSE else "weighs words (polyhead export --graphs sparse)"
        raise InvalidRequestError(
            f"model must be an encoder that {gives}, {signature.name} gives {listed(signature.outputs)}"
        )
    width = signature.outputs[outputs[0]].shape[-1]
    if dimensions is not None and dimensions > width:
        raise InvalidRequestError(
            f"dimensions must be from 1 to {width}, the width of {signature.name}'s vectors, was {dimensions}"
        )
    if precision is not None:
        ranges_of(signature.outputs[outputs[0]], precision, dimensions or width, "output_dtype")
    if isinstance(inputs[0], str) and TEXT not in signature.inputs:
        raise InvalidRequestError(f"{field} must be token ids: {signature.name} has no tokenizer")
    parameters = caller.given({TRUNCATE: options.truncate, PROMPT_NAME: options.prompt_name})
    message = message_of(signature, outputs, parameters)
    if dimensions is not None:
        message.outputs[0].parameters[DIMENSIONS].int64_param = dimensions
    if precision is not None:
        message.outputs[0].parameters[PRECISION].string_param = precision
    names = dict.fromkeys((TEXT, INPUT_IDS), f"{field}[]")
    arrays, tokens = joined(await answer_list(caller, signature, message, inputs, names))
    return model.name, arrays, tokens
