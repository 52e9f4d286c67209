"""Check what a request asks for, apart from its data, once for all requests with the same header.

A client's requests hardly differ in anything but their tensors. Names, datatypes, shapes, parameters and
requested outputs stand in the request's header. Equal headers ask for the same, so the template of a header
that has been checked is found by the header's bytes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import PROMPT_NAME, TEXT, TEXT_PAIR
from polyhead_proto.outputs import declared
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import InvalidRequestError, TooLargeError, listed, quoted
from polyhead_server.inference.inputs import RequestInput, check_inputs
from polyhead_server.inference.outputs import RequestedOutput, requested_outputs
from polyhead_server.inference.parameters import RequestParameters, read_request_parameters
from polyhead_server.inference.reply import ReplyLayout, layout_of_reply
from polyhead_server.inference.wire import InferRequest
from polyhead_server.repository.manifest import ManifestForm
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling import Size, measure
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.serving.tokeniser import PLAIN, check_total
from polyhead_server.settings import Settings

_MAX_HEADER_BYTES = 4096
_MAX_TEMPLATES = 1024
_MOST_FILLED = 1024
"""Elements of inputs that are missing, which a template keeps."""
_MAX_LAYOUTS = 2048
"""Of all templates together: each takes a few KiB for a graph with many outputs, and keeps its template."""

_TOKENISING = 1024
"""Bytes that are copied in the time in which a byte of text is tokenised, about: 0.2 µs."""

LayoutAt = Callable[["RequestTemplate", int], ReplyLayout]
"""`layout_at` with settings."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestTemplate:
    """What all requests with the same header ask for."""

    model: Model
    parameters: RequestParameters
    prompt: str
    """What precedes each text."""
    form: ManifestForm
    """What else is done to each text."""
    inputs: Sequence[RequestInput]
    unbounded: Sequence[RequestInput]
    """Those of the inputs whose largest value follows from a text."""
    missing: Sequence[TensorSpec]
    """The graph's inputs that requests leave out."""
    sizes: Mapping[str, int]
    """The sizes of the axes that vary. T is missing where it follows from a text."""
    outputs: Sequence[RequestedOutput]
    extras: frozenset[str]
    """Those of the outputs that follow from the inputs."""
    has_texts: bool
    """Whether outputs are of texts, whose bytes differ from request to request."""
    layout: ReplyLayout | None = None
    """What `layout_at` gives; None where it follows from the data: from texts, or of them."""
    fills: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The contents of what is missing, if they are the same for all requests, and few."""
    measured: tuple[Size, int] | None = None
    """What `measure` gives; None where it follows from the data."""
    work_bytes: int
    """What reading a request costs beyond its own bytes, in bytes to copy."""
    work_factor: int
    """What reading a byte of its contents costs, likewise."""

    def work(self, request: InferRequest) -> int:
        """Return what reading a request costs, in bytes to copy."""
        contents = request.size - len(request.header)
        return max(request.size, self.work_bytes + self.work_factor * contents)

    def learn(self, layout: ReplyLayout, feeds: Mapping[str, NDArray[Any]]) -> "RequestTemplate":
        """Return the template with what all its requests share, given the layout and inputs of one."""
        missing = {spec.name for spec in self.missing}
        fills = {name: feeds[name] for name in missing} if self.work_bytes <= _MOST_FILLED else {}
        for array in fills.values():
            array.flags.writeable = False
        signature = self.model.signature
        is_full = missing.issuperset(spec.name for spec in signature.lengths)  # all are as long as may be
        measured = measure(feeds, signature) if is_full else None
        return replace(self, layout=layout, fills=fills, measured=measured)

    @property
    def holds_data(self) -> bool:
        """Whether it has typed contents, and so is of one request only."""
        return any(one.contents is not None for one in self.inputs)


def make_template(
    message: pb.ModelInferRequest, raw_count: int, model: Model, settings: Settings
) -> RequestTemplate:
    """Check everything about a request but its raw contents. Takes long for typed contents.

    Raises:
        InvalidRequestError: Something is wrong.
    """
    signature = model.signature
    parameters = read_request_parameters(message.parameters, takes_text=TEXT in signature.inputs)
    outputs = requested_outputs(message.outputs, parameters.default, signature)
    inputs, sizes = check_inputs(message, raw_count, signature, settings)
    given = {one.name for one in inputs}
    missing = [spec for spec in signature.feeds if spec.name not in given]
    extras = frozenset(output.spec.name for output in outputs if declared(output.spec).made)
    has_texts = any(output.spec.is_text for output in outputs)
    prompt, form = prompt_of(
        parameters.prompt_name, signature, is_text=TEXT in given, is_pair=TEXT_PAIR in given
    )
    if signature.length in sizes and not has_texts:
        work_bytes, work_factor = sum(math.prod(spec.left_out_at(sizes)) for spec in missing), 1
    else:
        work_bytes, work_factor = _TOKENISING * len(prompt), _TOKENISING
    return RequestTemplate(
        model=model,
        parameters=parameters,
        prompt=prompt,
        form=form,
        inputs=inputs,
        unbounded=[one for one in inputs if isinstance(one.spec.below, str) and one.limit is None],
        missing=missing,
        sizes=sizes,
        outputs=outputs,
        extras=extras,
        has_texts=has_texts,
        work_bytes=work_bytes,
        work_factor=work_factor,
    )


def prompt_of(
    name: str | None, signature: Signature, *, is_text: bool, is_pair: bool = False
) -> tuple[str, ManifestForm]:
    """Return what precedes the texts of a request that names this prompt, or none, and what else is done.

    In pairs that a template makes one text of, none is what the template has there.

    Raises:
        InvalidRequestError: The family has no such prompt, or there are no texts.
    """
    tokenizer = signature.manifest.tokenizer
    if tokenizer is None or not is_text:
        if name is None:
            return "", PLAIN
        raise InvalidRequestError(
            f"parameter {PROMPT_NAME} of the request goes with text: put a prompt's tokens before token ids"
        )
    around = tokenizer.pair_template if is_pair else None
    nothing = "" if around is None else around.before
    if name is None:
        return tokenizer.prompt or nothing, tokenizer.form or PLAIN
    if name and name not in tokenizer.prompts:
        names = listed(sorted(tokenizer.prompts))
        must = f"be one of {names}; or empty for no prompt" if names else "be left out: this model has none"
        raise InvalidRequestError(f"parameter {PROMPT_NAME} of the request must {must}, was {quoted(name)}")
    return tokenizer.prompts.get(name, nothing), tokenizer.forms.get(name, PLAIN)


def layout_at(
    template: RequestTemplate,
    tokens: int,
    *,
    settings: Settings,
) -> ReplyLayout:
    """Check what a request makes the engine do, and lay out its reply.

    Args:
        template: The request's.
        tokens: Its T.
        settings: The server's limits.

    Raises:
        TooLargeError: There are too many tokens, or computing them takes too much memory.
        InvalidRequestError: A query is out of range.
    """
    signature = template.model.signature
    sizes = {**template.sizes, signature.length: tokens}
    _check_work(sizes, signature, settings)
    return layout_of_reply(template.outputs, sizes=sizes, signature=signature)


def _check_work(sizes: Mapping[str, int], signature: Signature, settings: Settings) -> None:
    letter = max(signature.sequences, key=sizes.__getitem__)
    batch, tokens = sizes["B"], sizes[letter]
    check_total(batch, tokens, settings.max_request_tokens, letter)
    needed = signature.working_bytes(batch, tokens, sizes)
    if needed > settings.max_working_bytes:
        shown = " × ".join(f"{letter} {sizes[letter]}" for letter in ("B", *signature.sequences))
        fast = ", or the fast model if its output is enough" if signature.graph != "fast" else ""
        raise TooLargeError(
            f"computing {shown} needs about {needed} bytes of memory, the limit is "
            f"{settings.max_working_bytes}: send fewer or shorter sequences{fast}"
        )


class RequestTemplates:
    """The templates of recent requests. Lives on the event loop.

    Args:
        registry: The models. When one of them changes, all templates are forgotten, so that none outlives the
            time in which its model is the one to answer.
        settings: The server's limits.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._changes = registry.changes
        self._known: dict[tuple[bytes, int], RequestTemplate] = {}
        self.layout_at = lru_cache(maxsize=_MAX_LAYOUTS)(partial(layout_at, settings=settings))
        """Remembers layouts. May be called in any thread."""

    def find(self, request: InferRequest) -> RequestTemplate | None:
        """Return the template of an earlier request with the same header."""
        if self._changes != self._registry.changes:
            self.forget()
        return self._known.get((request.header, len(request.contents)))

    def remember(self, request: InferRequest, template: RequestTemplate) -> None:
        """Keep a template whose model is in service now, unless it holds data or its header is too long."""
        if len(request.header) > _MAX_HEADER_BYTES or template.holds_data:
            return
        while len(self._known) >= _MAX_TEMPLATES:
            del self._known[next(iter(self._known))]
        self._known[request.header, len(request.contents)] = template

    def forget(self) -> None:
        """Forget every template, which would keep its model in memory."""
        self._changes = self._registry.changes
        self._known.clear()
        self.layout_at.cache_clear()
