"""The requests of a plan, written before the clock starts, as the polyhead client writes them.

Shape letters: B batch, T tokens, D d_model.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from polyhead_client.calls import Call, Gather, Operation, Stream
from polyhead_client.errors import DeadlineExceeded, PolyheadError, Unavailable
from polyhead_client.models import ModelInfo
from polyhead_client.operations import Operations
from polyhead_load.connection import Connection, Request
from polyhead_load.contents import draw_lengths, texts, token_ids, vectors
from polyhead_load.errors import LoadError
from polyhead_load.likeness import Likeness
from polyhead_load.plan import Lengths, Plan
from polyhead_load.reply_head import joined, read_head
from polyhead_proto.names import INPUT_IDS, Property

T = TypeVar("T")

# Apart from the schedule's streams of random numbers, which have the same seed.
_LENGTHS, _CONTENTS = 10, 11

# So many different requests, before they come again: of one length they only differ in their contents.
_SAME_LENGTH, _LENGTHS_MIN, _LENGTHS_MAX = 16, 16, 256
_MEMORY_BYTES = 128 << 20

_INFERENCE = frozenset({"ModelInfer", "ModelStreamInfer"})


class Author:
    """Writes requests to the models behind one connection, and asks for their metadata once.

    Args:
        connection: To the server.
        address: The server's, for messages.
    """

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._operations = Operations(address, None)
        self.first: Operation[Any]
        """The one that has written the first request of the last plan, and waits for its reply."""

    def requests(self, plan: Plan) -> Iterator[Request]:
        """Yield the requests of a plan, one after the other, so that others may run in between.

        Raises:
            LoadError: The model does not take them.
            PolyheadError: The plan asks for what the model does not have, or the server does not answer.
        """
        info = self._run(self._operations.model(plan.model or None))
        plan = replace(plan, model=info.family)
        _check_length(plan, info)
        random = np.random.default_rng([plan.seed, _CONTENTS])
        count = _count(plan, info)
        lengths = draw_lengths(plan.tokens, count * plan.batch, np.random.default_rng([plan.seed, _LENGTHS]))
        likeness = Likeness()
        for start in range(0, len(lengths), plan.batch):
            operation = self._operations.encode(
                _inputs(plan, info, lengths[start : start + plan.batch], random),
                model=plan.model,
                **plan.asked,
            )
            wanted = self._written(operation)
            if start:
                operation.close()
            else:
                self.first = operation
            yield Request(
                name=label(plan),
                wanted=wanted,
                number=start,
                tokens=None if plan.text else max(lengths[start : start + plan.batch]),
                likeness=likeness,
            )

    def _written(self, operation: Operation[Any]) -> Call | Stream:
        """Return what an operation would send to have something computed."""
        wanted = next(operation)
        while isinstance(wanted, Call) and wanted.rpc.name not in _INFERENCE:
            wanted = operation.send(self._connection.ask(wanted))
        if isinstance(wanted, Gather):
            raise LoadError(
                "batch must be one that the server takes in one request, was larger: lower --batch"
            )
        if not isinstance(wanted, Call | Stream):
            raise TypeError(f"an operation must begin with a call or a stream, was {wanted}")
        return wanted

    def _run(self, operation: Operation[T]) -> T:
        """Carry out an operation that only calls."""
        try:
            wanted = next(operation)
            while isinstance(wanted, Call):
                wanted = operation.send(self._connection.ask(wanted))
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise TypeError(f"an operation must only call, was {wanted}")


def label(plan: Plan) -> str:
    """Return what a plan asks for, in one line."""
    tokens = plan.tokens
    size = (
        f"~{tokens.median:g} ({tokens.low} to {tokens.high})" if isinstance(tokens, Lengths) else f"{tokens}"
    )
    layers = ",".join(map(str, plan.attention)) if isinstance(plan.attention, list) else plan.attention
    parts = {
        "B": plan.batch if plan.batch > 1 else None,
        "T": size,
        "attention": layers,
        "heads": plan.heads,
        "queries": plan.queries,
        "dtype": plan.dtype,
    }
    spelled = [f"{name}={value}" for name, value in parts.items() if value is not None]
    return " ".join([plan.model, *spelled, *(["text"] if plan.text else [])])


def check_first(connection: Connection, request: Request, operation: Operation[Any]) -> None:
    """Send one request, so that what is wrong with all of them is said before the load begins.

    The client reads its reply, to the last byte; what comes later is only compared with it. Where the server
    is too busy for the first, the next answer is what others are compared with.

    Args:
        connection: To the server.
        request: What to send.
        operation: The one that has written the request, and waits for its reply.

    Raises:
        LoadError: The server does not take it, and never will; or the reply is none.
    """
    try:
        messages = connection.fetch(request.wanted)
    except (Unavailable, DeadlineExceeded):
        return
    except PolyheadError as error:
        raise LoadError(f"{request.name} is refused: {error.details or error}") from error
    try:
        for message in messages:
            operation.send(message)
    except StopIteration:
        heads = [read_head(message, request.wanted.rpc.response) for message in messages]
        fault = request.answered(joined(tensor for head in heads for tensor in head.tensors))
    except PolyheadError as error:
        fault = str(error)
    else:
        fault = "the reply ends too early"
    if fault is not None:
        raise LoadError(f"{request.name} is answered with something else: {fault}")


def _check_length(plan: Plan, info: ModelInfo) -> None:
    limits = [info.max_tokens]
    if plan.text:
        spelled = info.properties.get(Property.TEXT_MAX_TOKENS, "")
        limits.append(int(spelled) if spelled.isdecimal() else None)
    for limit in limits:
        if limit is not None and plan.longest > limit:
            raise LoadError(f"tokens must be at most {limit} for {info.name}, was {plan.longest}")


def _count(plan: Plan, info: ModelInfo) -> int:
    """Return how many different requests there are."""
    if isinstance(plan.tokens, Lengths):
        size = 4 * plan.batch * plan.tokens.median * (info.d_model or 1)
        return int(np.clip(_MEMORY_BYTES // size, _LENGTHS_MIN, _LENGTHS_MAX))
    size = 4 * plan.batch * plan.tokens * (info.d_model or 1)
    return int(np.clip(_MEMORY_BYTES // size, 1, _SAME_LENGTH))


def _inputs(plan: Plan, info: ModelInfo, lengths: list[int], random: np.random.Generator) -> Any:
    if plan.text:
        if not info.takes_text:
            raise LoadError(f"text must be off for {info.name}: it takes {', '.join(info.inputs)}")
        return texts(lengths, random)
    if INPUT_IDS in info.inputs:
        if info.vocabulary is None:
            raise LoadError(f"{info.name} does not say its vocabulary, so token ids cannot be made for it")
        return token_ids(lengths, info.vocabulary, random)
    if info.d_model is None:
        raise LoadError(f"{info.name} does not say its d_model, so vectors cannot be made for it")
    return vectors(lengths, info.d_model, random)
