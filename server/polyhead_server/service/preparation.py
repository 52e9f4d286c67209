"""From a request's arrays and texts to what the engine takes: tokenised, checked and completed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.datatypes import pack_strings
from polyhead_proto.names import LENGTHS, TOKENS
from polyhead_server.errors import TooLargeError
from polyhead_server.service.decoding import Decoded
from polyhead_server.service.forms import Form
from polyhead_server.settings import Settings
from polyhead_server.signature import Signature
from polyhead_server.tokeniser import check_total


@dataclass(kw_only=True, slots=True)
class Prepared:
    """What the engine needs, and what the reply holds besides its outputs."""

    feeds: Mapping[str, NDArray[Any]]
    extras: Mapping[str, NDArray[Any] | bytes]
    """`tokens` and `lengths`, which no graph gives."""
    batch: int
    tokens: int
    tokenise_ns: int | None


def prepare(form: Form, decoded: Decoded, settings: Settings) -> Prepared:
    """Tokenises, and fills in what may be left out.

    Raises:
        InvalidRequestError: A text is too long.
        TooLargeError: There is too much to compute.
    """
    model, signature = form.model, form.model.signature
    feeds = dict(decoded.arrays)
    names: Sequence[Sequence[str]] | None = None
    tokenise_ns = None
    if decoded.texts is not None and model.tokeniser is not None:
        started_ns = time.perf_counter_ns()
        tokenised = model.tokeniser.encode(
            decoded.texts,
            truncate=form.parameters.truncate,
            max_total=settings.max_request_tokens,
            with_tokens=form.wants_tokens,
        )
        feeds["input_ids"], feeds[LENGTHS] = tokenised.input_ids, tokenised.lengths
        if "token_type_ids" in signature.inputs:
            feeds["token_type_ids"] = tokenised.token_type_ids
        names = tokenised.tokens
        tokenise_ns = time.perf_counter_ns() - started_ns
    batch, tokens = feeds[signature.primary].shape[:2]
    _check_work(batch, tokens, signature, settings)
    _complete(feeds, batch, tokens, signature)
    extras: dict[str, NDArray[Any] | bytes] = {}
    if LENGTHS in signature.outputs:
        extras[LENGTHS] = feeds[LENGTHS]
    if form.wants_tokens and model.tokeniser is not None:
        names = names or model.tokeniser.tokens_of(feeds["input_ids"], feeds[LENGTHS])
        extras[TOKENS] = pack_strings(
            text.encode() for row in names for text in (*row, *[""] * (tokens - len(row)))
        )
    return Prepared(feeds=feeds, extras=extras, batch=batch, tokens=tokens, tokenise_ns=tokenise_ns)


def _check_work(batch: int, tokens: int, signature: Signature, settings: Settings) -> None:
    """Checks what the engine would have to do.

    Raises:
        TooLargeError: These are too many tokens, or their attention takes too much memory.
    """
    check_total(batch, tokens, settings.max_request_tokens)
    needed = signature.working_bytes(batch, tokens)
    if needed > settings.max_working_bytes:
        fast = ", or the fast model if its output is enough" if signature.graph != "fast" else ""
        raise TooLargeError(
            f"computing B {batch} × T {tokens} needs about {needed} bytes of memory, the limit is "
            f"{settings.max_working_bytes}: send fewer or shorter sequences{fast}"
        )


def _complete(feeds: dict[str, NDArray[Any]], batch: int, tokens: int, signature: Signature) -> None:
    """Fills in inputs that were left out, and turns the others into the graph's own datatypes."""
    if LENGTHS not in feeds:
        feeds[LENGTHS] = np.full(batch, tokens, np.int32)
    feeds[LENGTHS] = feeds[LENGTHS].astype(np.int32, copy=False)
    if "token_type_ids" in signature.inputs and "token_type_ids" not in feeds:
        feeds["token_type_ids"] = np.zeros((batch, tokens), np.int64)
    if "mask" in signature.inputs and "mask" not in feeds:
        feeds["mask"] = np.ones((batch, tokens, tokens), np.bool_)
    if "x" in feeds:
        feeds["x"] = feeds["x"].astype(np.float32, copy=False)
