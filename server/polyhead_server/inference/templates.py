"""What a request asks for, apart from its data; checked once for all requests of one form.

A client's requests differ in their tensors and hardly in anything else. Names, datatypes, shapes, parameters
and requested outputs lie in the request's head; equal heads ask for the same, so a head that has been checked
is known again by its bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyhead_proto import messages as pb
from polyhead_proto.names import LENGTHS, TEXT, TOKENS
from polyhead_server.errors import RequestError
from polyhead_server.inference.decoding import Inputs, check_inputs
from polyhead_server.inference.outputs import Planned, Wanted, plan, requested_outputs
from polyhead_server.inference.parameters import RequestParameters, read_request_parameters
from polyhead_server.inference.reply import reply_size, write_head
from polyhead_server.inference.wire import InferRequest
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.settings import Settings

_LONGEST_HEAD = 4096
_CONVERTING = 16
"""Bytes that are copied in the time in which one byte of another datatype is made."""
_MOST_FORMS = 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A reply whose every size is known."""

    outputs: Sequence[Planned]
    computed: Sequence[str]
    """Those of the outputs that the graph gives."""
    head: bytes
    size: int
    """Of the whole reply, without the request's id."""
    effort: int
    """What writing it costs, in bytes to copy."""
    computed_bytes: int
    """Of all that the graph gives for it."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What requests with the same head ask for."""

    model: Model
    version: str
    """As the requests name it; empty for the newest."""
    parameters: RequestParameters
    inputs: Inputs
    wanted: Sequence[Wanted]
    wants_tokens: bool
    plan: Plan | None
    """None where sizes follow from the data: from text, or for `tokens`."""
    filled: int = 0
    """Values of inputs that were left out, and will be made."""


class Forms:
    """Finds the form of a request, known or new.

    Args:
        registry: The models.
        settings: The limits.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._known: dict[tuple[bytes, int], Form] = {}

    def recall(self, request: InferRequest) -> Form | None:
        """The form of an earlier request with the same head, where its model is still the one in service."""
        form = self._known.get((request.head, len(request.raw)))
        if form is None:
            return None
        try:
            serving = self._registry.find(form.model.signature.name, form.version)
        except RequestError:  # the model has gone: said, and counted, where a new form looks for its model
            serving = None
        if form.model is not serving:
            del self._known[request.head, len(request.raw)]
            return None
        return form

    def forget(self, model: Model) -> None:
        """Forgets every form of a model, which it would keep in memory."""
        self._known = {head: form for head, form in self._known.items() if form.model is not model}

    def check(self, request: InferRequest, message: pb.ModelInferRequest, model: Model) -> Form:
        """Checks a request's form. Takes long for typed contents, which are part of the head.

        Raises:
            InvalidRequestError: Something other than the raw data is wrong.
        """
        signature = model.signature
        parameters = read_request_parameters(message.parameters, takes_text=TEXT in signature.inputs)
        wanted = requested_outputs(message.outputs, parameters.default, signature)
        inputs = check_inputs(message, len(request.raw), signature, self._settings)
        wants_tokens = any(output.spec.name == TOKENS for output in wanted)
        known = None
        filled = 0
        if signature.length in inputs.sizes:
            given = {tensor.name for tensor in inputs.tensors}
            left_out = [spec for spec in signature.feeds if spec.name not in given]
            filled = sum(math.prod(spec.at(inputs.sizes)) for spec in left_out)
            if not wants_tokens:
                known = plan_reply(wanted, sizes=inputs.sizes, signature=signature)
        return Form(
            model=model,
            version=message.model_version,
            parameters=parameters,
            inputs=inputs,
            wanted=wanted,
            wants_tokens=wants_tokens,
            plan=known,
            filled=filled,
        )

    def remember(self, request: InferRequest, form: Form) -> None:
        """Keeps a form for the next request, where its head is no longer than a head should be."""
        if form.inputs.typed or len(request.head) > _LONGEST_HEAD:
            return
        while len(self._known) >= _MOST_FORMS:
            del self._known[next(iter(self._known))]
        self._known[request.head, len(request.raw)] = form


def plan_reply(
    wanted: Sequence[Wanted], *, sizes: Mapping[str, int], signature: Signature, tokens_bytes: int = 0
) -> Plan:
    """Works out every output of a reply.

    Args:
        wanted: The outputs.
        sizes: Of the axes that vary.
        signature: What the model gives.
        tokens_bytes: The bytes of `tokens`, which alone do not follow from its shape.

    Raises:
        InvalidRequestError: A query is out of range.
    """
    outputs = [plan(output, sizes=sizes, tokens_bytes=tokens_bytes) for output in wanted]
    head = write_head(signature, outputs)
    names = (output.spec.name for output in wanted)
    return Plan(
        outputs=outputs,
        computed=[name for name in names if name not in {TOKENS, LENGTHS}],
        head=head,
        size=reply_size(head, outputs),
        effort=sum(effort(output) for output in outputs),
        computed_bytes=sum(output.computed_bytes for output in outputs),
    )


def effort(output: Planned, size: int | None = None) -> int:
    """What writing an output costs, or so many bytes of it: in bytes to copy."""
    is_converted = output.wanted.datatype != output.wanted.spec.datatype
    return (output.bytes if size is None else size) * (_CONVERTING if is_converted else 1)
