"""Read a request: from its header and raw contents to what the engine and the reply need."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import pack_strings
from polyhead_proto.names import LENGTHS, SPANS, TEXT, TEXT_PAIR, TOKENS
from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.inputs import bounded
from polyhead_server.inference.parts import Parts, parts_of
from polyhead_server.inference.reply import Content, ReplyLayout, check_size
from polyhead_server.inference.templates import (
    LayoutAt,
    RequestTemplate,
    layout_at,
    make_template,
)
from polyhead_server.inference.values import check_values, read_inputs
from polyhead_server.inference.wire import InferRequest, parse
from polyhead_server.scheduling import Work, measure
from polyhead_server.serving.registry import Model
from polyhead_server.serving.tokeniser import Tokenised
from polyhead_server.serving.words import OF_NO_TEXT
from polyhead_server.settings import Settings


@dataclass(kw_only=True, slots=True)
class Job:
    """A request that has been read and checked."""

    template: RequestTemplate
    work: Work | None
    """For the scheduler; None where no requested output needs the engine."""
    layout: ReplyLayout
    parts: Parts | None
    """None for a whole reply."""
    extras: dict[str, Content]
    """The requested outputs that follow from the inputs."""
    parsed_ns: int
    """When the inputs had been read, by `time.perf_counter_ns`."""
    tokenise_ns: int | None
    """How long the tokeniser took; None without texts."""


def read(
    request: InferRequest,
    template: RequestTemplate | None,
    model: Model,
    deadline: float,
    streamed: bool,
    *,
    known: LayoutAt,
    settings: Settings,
) -> Job:
    """Read and check a request, and lay out its reply; may be called in any thread.

    Args:
        request: The request.
        template: Of an earlier request with the same header; None: the header is parsed and checked here.
        model: The one that is asked.
        deadline: When the caller stops waiting, in the event loop's time.
        streamed: The reply may have several parts.
        known: `layout_at`, which remembers the layouts of templates.
        settings: The server's limits.

    Raises:
        InvalidRequestError: Something about the request is wrong.
        TooLargeError: There is too much to compute, or to send.
    """
    is_new = template is None
    if template is None:
        message = parse(pb.ModelInferRequest, request.header)
        template = make_template(message, len(request.contents), model, settings)
    signature, parameters = model.signature, template.parameters
    if parameters.parts and not streamed:
        raise InvalidRequestError(
            "parameter parts of the request must be left out or false: "
            "a reply in parts is for ModelStreamInfer"
        )
    feeds, texts = read_inputs(template.inputs, request.contents, settings.max_text_bytes)
    parsed_ns, tokenise_ns = time.perf_counter_ns(), None
    sizes, made = template.sizes, None
    if texts:
        made = _tokenise(texts, feeds, template, settings)
        sizes = {**sizes, signature.length: feeds[signature.primary.name].shape[1]}
        for given in template.unbounded:
            check_values(bounded(given, sizes), feeds[given.name])
        tokenise_ns = time.perf_counter_ns() - parsed_ns
    tokens, layout = sizes[signature.length], template.layout
    if layout is None:  # This checks the sizes, before anything is made of them.
        # A new template may not be kept, so what is remembered by it is not, either.
        layout = layout_at(template, tokens, settings=settings) if is_new else known(template, tokens)
    feeds |= template.fills
    for spec in template.missing:
        if spec.name not in feeds:  # else the tokeniser gave it
            feeds[spec.name] = spec.filled_at(sizes)
    if is_new and not texts and not template.has_texts:
        template = template.learn(layout, feeds)
    extras = _extras(feeds, made, template) if template.extras else {}
    if template.has_texts:
        layout = layout.with_texts({TOKENS: len(extras[TOKENS])})
    parts = None
    if parameters.parts:
        parts = parts_of(
            layout.outputs,
            signature=signature,
            request_id=request.request_id,
            part_limit=settings.max_reply_bytes,
            total_limit=settings.max_stream_reply_bytes,
        )
    else:
        most_bytes = settings.max_reply_bytes if request.most_bytes is None else request.most_bytes
        check_size(layout, request.request_id, most_bytes)
    work = None
    if layout.computed:
        size, real_tokens = template.measured or measure(feeds, signature)
        work = Work(
            feeds=feeds,
            outputs=layout.computed,
            size=size,
            real_tokens=real_tokens,
            deadline=deadline,
            timeout=parameters.timeout,
            level=parameters.level,
        )
    return Job(
        template=template,
        work=work,
        layout=layout,
        parts=parts,
        extras=extras,
        parsed_ns=parsed_ns,
        tokenise_ns=tokenise_ns,
    )


def _tokenise(
    texts: Mapping[str, Sequence[str]],
    feeds: dict[str, NDArray[Any]],
    template: RequestTemplate,
    settings: Settings,
) -> Tokenised:
    """Add what the tokeniser makes of texts to the feeds; return it, with tokens and spans if requested."""
    model = template.model
    if model.tokeniser is None:
        raise AssertionError("only models with a tokeniser take text")
    truncate = template.parameters.truncate
    made = model.tokeniser.encode(
        texts[TEXT],
        texts.get(TEXT_PAIR),
        prompt=template.prompt,
        form=template.form,
        truncate=settings.truncate if truncate is None else truncate,
        max_total=settings.max_request_tokens,
        with_tokens=TOKENS in template.extras,
        with_spans=SPANS in template.extras,
    )
    arrays: dict[str | None, NDArray[Any]] = {TOKENS: made.input_ids, LENGTHS: made.lengths}
    tokenizer = model.signature.manifest.tokenizer
    if tokenizer is None or tokenizer.types:
        arrays["types"] = made.token_type_ids
    for spec in model.signature.feeds:
        if spec.role in arrays:
            feeds[spec.name] = arrays[spec.role].astype(spec.dtype, copy=False)
    return made


def _extras(
    feeds: Mapping[str, NDArray[Any]], made: Tokenised | None, template: RequestTemplate
) -> dict[str, Content]:
    """Return the requested outputs that follow from the inputs."""
    extras: dict[str, Content] = {}
    signature, tokeniser = template.model.signature, template.model.tokeniser
    if (ids := signature.inputs_by_role.get(TOKENS)) and (lengths := signature.inputs_by_role.get(LENGTHS)):
        extras[LENGTHS] = feeds[lengths.name]
        if SPANS in template.extras:
            in_no_text = np.full((*feeds[ids.name].shape, 3), OF_NO_TEXT, np.int32)
            extras[SPANS] = in_no_text if made is None or made.spans is None else made.spans
        if TOKENS in template.extras and tokeniser is not None:
            rows = made.tokens if made else tokeniser.tokens_of(feeds[ids.name], feeds[lengths.name])
            width = feeds[ids.name].shape[1]
            extras[TOKENS] = pack_strings(
                [text.encode() for row in rows for text in (*row, *[""] * (width - len(row)))]
            )
    return extras
