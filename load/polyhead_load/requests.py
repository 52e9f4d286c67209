"""Build the requests of a plan with the polyhead client, before the clock starts.

Shape letters: B batch, T tokens, D d_model.
"""

from dataclasses import replace
from typing import Any

import gevent
import numpy as np

from polyhead_client.calls import Call, Gather, Operation, Stream
from polyhead_client.errors import DeadlineExceeded, PolyheadError, Unavailable
from polyhead_client.models import ModelInfo
from polyhead_client.operations import Operations
from polyhead_load.connection import LoadConnection, Request
from polyhead_load.contents import draw_lengths, pairs, texts, token_ids, vectors
from polyhead_load.errors import LoadError
from polyhead_load.load_plan import Lengths, LoadPlan
from polyhead_load.replies import ReplyCheck, join_parts, read_header
from polyhead_proto import messages as pb
from polyhead_proto.names import INPUT_IDS, LOGITS, MEMORY, TEXT_PAIR, Property

# Streams of random numbers apart from the schedule's, which has the same seed.
_LENGTHS, _CONTENTS = 10, 11

# Different requests before they repeat; those of one length differ only in their contents.
_SAME_LENGTH, _LENGTHS_MIN, _LENGTHS_MAX = 16, 16, 256
_MEMORY_BYTES = 128 << 20

_INFERENCE = frozenset({"ModelInfer", "ModelStreamInfer"})


class RequestBuilder:
    """Build requests to the models behind one connection, and ask for their metadata once."""

    def __init__(self, connection: LoadConnection) -> None:
        self._connection = connection
        self._operations = Operations(connection.address, None)

    def build(self, plan: LoadPlan) -> list[Request]:
        """Build the requests of a plan, and send the first to see whether the server takes it.

        Raises:
            LoadError: The model does not take such requests, or does not reply as it should.
            PolyheadError: The plan asks for what the model does not have, or the server does not answer.
        """
        info = self._model(plan.model)
        if plan.model not in {"", info.family}:
            raise LoadError(
                f"model must be a family, was {plan.model!r}, one of its graphs: outputs, such as pooled, "
                f"decide which graph of {info.family!r} answers"
            )
        plan = replace(plan, model=info.family, outputs=plan.outputs.of(info))
        _check_length(plan, info)
        contents = np.random.default_rng([plan.seed, _CONTENTS])
        count = _count(plan, info) * plan.batch
        lengths = draw_lengths(plan.tokens, count, np.random.default_rng([plan.seed, _LENGTHS]))
        requests: list[Request] = []
        for start in range(0, count, plan.batch):
            of_batch = lengths[start : start + plan.batch]
            inputs = _inputs(plan, info, of_batch, contents)
            operation = self._operations.encode(**inputs, model=plan.model, **plan.outputs.arguments)
            wanted = self._until_inference(operation)
            request = Request(
                name=label(plan),
                wanted=wanted,
                number=start,
                check=requests[0].check if requests else ReplyCheck(self._token_axes(wanted)),
            )
            if not requests:
                self._check_first(request, operation)
            operation.close()
            requests.append(request)
            gevent.sleep(0)  # heartbeats of a locust worker are due meanwhile
        return requests

    def _model(self, name: str) -> ModelInfo:
        try:
            wanted = self._until_inference(self._operations.model(name or None))
        except StopIteration as stop:
            info: ModelInfo = stop.value
            return info
        raise TypeError(f"an operation for metadata must not ask for inference, was {wanted}")

    def _token_axes(self, wanted: Call | Stream) -> dict[str, list[int]]:
        """Return the axes along which outputs of the called graph have T, or the length of a memory."""
        outputs = self._model(pb.ModelInferRequest.FromString(wanted.data).model_name).outputs
        return {
            name: [axis for axis, letter in enumerate(tensor.axes) if letter in {"T", "S"}]
            for name, tensor in outputs.items()
        }

    def _until_inference(self, operation: Operation[Any]) -> Call | Stream:
        """Carry out an operation up to its inference request, and return that."""
        wanted = next(operation)
        while isinstance(wanted, Call) and wanted.rpc.name not in _INFERENCE:
            (reply,) = self._connection.fetch(wanted)
            wanted = operation.send(reply)
        if isinstance(wanted, Gather):
            raise LoadError(
                "batch must be one that the server takes in one request, was larger: lower --batch"
            )
        if not isinstance(wanted, Call | Stream):
            raise TypeError(f"an operation must begin with a call or a stream, was {wanted}")
        return wanted

    def _check_first(self, request: Request, operation: Operation[Any]) -> None:
        """Send one request and have the client read its reply, to the last byte.

        Later replies are only compared with it. Where the server is too busy for the first, the next answer
        is what others are compared with.
        """
        try:
            messages = self._connection.fetch(request.wanted)
        except (Unavailable, DeadlineExceeded):
            return
        except PolyheadError as error:
            raise LoadError(f"{request.name} is rejected: {error.details or error}") from error
        try:
            for message in messages:
                operation.send(message)
        except StopIteration:
            headers = [read_header(message, request.wanted.rpc.response) for message in messages]
            fault = request.fault(join_parts(tensor for header in headers for tensor in header.tensors))
        except PolyheadError as error:
            fault = str(error)
        else:
            fault = "the reply ends too early"
        if fault is not None:
            raise LoadError(f"{request.name} is answered with something else: {fault}")


def label(plan: LoadPlan) -> str:
    """Return what a plan requests, in one line."""
    tokens = plan.tokens
    parts = {
        "B": plan.batch if plan.batch > 1 else None,
        "T": f"~{tokens.median:g} ({tokens.low} to {tokens.high})" if isinstance(tokens, Lengths) else tokens,
        "outputs": str(plan.outputs),
        "layers": plan.outputs.layers and ",".join(map(str, plan.outputs.layers)),
        "heads": plan.outputs.heads,
        "queries": plan.outputs.queries,
        "dtype": plan.outputs.dtype,
    }
    spelled = [f"{name}={value}" for name, value in parts.items() if value is not None]
    return " ".join([plan.model, *spelled, *(["text"] if plan.text else [])])


def _check_length(plan: LoadPlan, info: ModelInfo) -> None:
    limits = [info.max_tokens]
    if plan.text:
        spelled = info.properties.get(Property.TEXT_MAX_TOKENS, "")
        limits.append(int(spelled) if spelled.isdecimal() else None)
    for limit in limits:
        if limit is not None and plan.longest > limit:
            raise LoadError(f"tokens must be at most {limit} for {info.name}, was {plan.longest}")


def _count(plan: LoadPlan, info: ModelInfo) -> int:
    """Return how many different requests there are, within a limit of memory."""
    mixed = isinstance(plan.tokens, Lengths)
    tokens = plan.tokens.median if isinstance(plan.tokens, Lengths) else plan.tokens
    fitting = _MEMORY_BYTES // (4 * plan.batch * tokens * (info.d_model or 1))
    return int(np.clip(fitting, _LENGTHS_MIN if mixed else 1, _LENGTHS_MAX if mixed else _SAME_LENGTH))


def _inputs(
    plan: LoadPlan, info: ModelInfo, lengths: list[int], random: np.random.Generator
) -> dict[str, Any]:
    """Return the arguments of `encode` that are the inputs of one request."""
    if plan.text:
        if not info.takes_text:
            raise LoadError(f"text must be off for {info.name}: it takes {', '.join(info.inputs)}")
        if not _is_reranker(info):
            return {"inputs": texts(lengths, random)}
        queries, passages = pairs(lengths, random)
        return {"inputs": queries, "text_pair": passages}
    if INPUT_IDS in info.inputs:
        if info.vocabulary is None:
            raise LoadError(f"{info.name} does not say its vocabulary, so token ids cannot be made for it")
        return {"inputs": token_ids(lengths, info.vocabulary, random)}
    if info.d_model is None:
        raise LoadError(f"{info.name} does not say its d_model, so vectors cannot be made for it")
    inputs = {"inputs": vectors(lengths, info.d_model, random)}
    if MEMORY in info.inputs:  # memories are as long as the queries that attend to them
        inputs["memory"] = vectors(lengths, info.d_model, random)
    return inputs


def _is_reranker(info: ModelInfo) -> bool:
    """Return whether callers send pairs of texts, which get one score each."""
    logits = info.outputs.get(LOGITS)
    return TEXT_PAIR in info.inputs and logits is not None and logits.shape[-1] == 1
