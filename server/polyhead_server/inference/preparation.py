"""From a request's arrays and texts to what the engine takes: tokenised, checked and completed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.datatypes import DTYPES, pack_strings
from polyhead_proto.names import LENGTHS, TOKENS
from polyhead_server.errors import TooLargeError
from polyhead_server.inference.decoding import Decoded
from polyhead_server.inference.templates import Form
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.tokeniser import check_total
from polyhead_server.settings import Settings


@dataclass(kw_only=True, slots=True)
class Prepared:
    """What the engine needs, and what the reply holds besides its outputs."""

    feeds: Mapping[str, NDArray[Any]]
    extras: Mapping[str, NDArray[Any] | bytes]
    """`tokens` and `lengths`, which no graph gives."""
    sizes: Mapping[str, int]
    """Of the axes that vary, B among them."""
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
        made: Mapping[str | None, Any] = {
            "tokens": tokenised.input_ids,
            LENGTHS: tokenised.lengths,
            "types": tokenised.token_type_ids,
        }
        feeds |= {spec.name: made[spec.role] for spec in signature.feeds if spec.role in made}
        names = tokenised.tokens
        tokenise_ns = time.perf_counter_ns() - started_ns
    sizes = _sizes(form, feeds, signature)
    _check_work(sizes, signature, settings)
    _complete(feeds, sizes, signature)
    extras: dict[str, NDArray[Any] | bytes] = {}
    if (ids := signature.feed("tokens")) and (lengths := signature.feed(LENGTHS)):
        extras[LENGTHS] = feeds[lengths.name]
        if form.wants_tokens and model.tokeniser is not None:
            names = names or model.tokeniser.tokens_of(feeds[ids.name], feeds[lengths.name])
            width = sizes[ids.axes[1]]
            extras[TOKENS] = pack_strings(
                text.encode() for row in names for text in (*row, *[""] * (width - len(row)))
            )
    return Prepared(feeds=feeds, extras=extras, sizes=sizes, tokenise_ns=tokenise_ns)


def _sizes(form: Form, feeds: Mapping[str, NDArray[Any]], signature: Signature) -> Mapping[str, int]:
    """The sizes of the axes that vary: known with the form, unless it has a text."""
    if signature.length in form.inputs.sizes:
        return form.inputs.sizes
    return {**form.inputs.sizes, signature.length: feeds[signature.primary.name].shape[1]}


def longest(sizes: Mapping[str, int]) -> int:
    """The length of a request's sequences, as limits and costs count it: the longest of its axes."""
    return max(size for letter, size in sizes.items() if letter != "B")


def _check_work(sizes: Mapping[str, int], signature: Signature, settings: Settings) -> None:
    """Checks what the engine would have to do.

    Raises:
        TooLargeError: These are too many tokens, or their attention takes too much memory.
    """
    batch, tokens = sizes["B"], longest(sizes)
    check_total(batch, tokens, settings.max_request_tokens)
    needed = signature.working_bytes(batch, tokens)
    if needed > settings.max_working_bytes:
        fast = ", or the fast model if its output is enough" if signature.graph != "fast" else ""
        raise TooLargeError(
            f"computing B {batch} × T {tokens} needs about {needed} bytes of memory, the limit is "
            f"{settings.max_working_bytes}: send fewer or shorter sequences{fast}"
        )


def _complete(feeds: dict[str, NDArray[Any]], sizes: Mapping[str, int], signature: Signature) -> None:
    """Fills in inputs that were left out, and turns the others into the graph's own datatypes."""
    for spec in signature.feeds:
        dtype = DTYPES[spec.datatype]
        if (given := feeds.get(spec.name)) is not None:
            feeds[spec.name] = given.astype(dtype, copy=False)
        else:
            fill = sizes[spec.fill] if isinstance(spec.fill, str) else spec.fill
            feeds[spec.name] = np.full(spec.at(sizes), fill, dtype)
