"""What a client does, without doing any input or output itself.

Each operation is a generator: it yields a `Call` (or a `Pause`), is sent the reply's bytes, and
returns its result. `Client` and `AsyncClient` only drive these generators, each over its own kind
of channel, so names, arguments and everything behind them are written once: here.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import EllipsisType
from typing import Any, TypeAlias

from polyhead_client import request
from polyhead_client.calls import Call, More, Operation, Pause, Stream, call
from polyhead_client.catalogue import Catalogue
from polyhead_client.deadline import Deadline
from polyhead_client.encoding import Encoding
from polyhead_client.errors import DeadlineExceeded, InvalidRequest, NotFound, TooLarge, Unavailable
from polyhead_client.inputs import Batch, Inputs, prepare
from polyhead_client.messages import parse
from polyhead_client.models import ATTENTION, ModelInfo, ModelStatistics, ServedModel, ServerInfo, family_of
from polyhead_client.parts import Assembly
from polyhead_client.reply import read
from polyhead_client.selection import Indices, Precision, select
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

Timeout: TypeAlias = float | EllipsisType | None
"""Seconds; None is no limit, ... is what the client was made with."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


class Operations:
    """The operations of one client."""

    def __init__(self, target: str, timeout: float | None) -> None:
        self._target = target
        self._timeout = timeout
        self._catalogue = Catalogue(target)

    def encode(
        self,
        inputs: Inputs,
        *,
        model: str | None = None,
        version: int | str | None = None,
        lengths: Any = None,
        attention_mask: Any = None,
        mask: Any = None,
        token_type_ids: Any = None,
        output: bool = True,
        pooled: bool | None = None,
        tokens: bool | None = None,
        attention: bool | int | Sequence[int] | None = None,
        heads: Indices | None = None,
        queries: Indices | None = None,
        dtype: Precision | None = None,
        truncate: bool = False,
        timeout: Timeout = ...,
    ) -> Operation[Encoding]:
        """Runs an encoder on one sequence or a batch; only what is asked for crosses the wire.

        Args:
            inputs: One sequence: a text, floats [T, D], or token ids [T]. A batch: a list of any of
                these, each of its own length, or one array: floats [B, T, D] or token ids [B, T].
                Results come in the same form; see `Encoding`.
            model: The family, such as `minilm`; None is the only one that takes such inputs.
            version: None is the newest.
            lengths: Integers [B], 0..T, for an array that is padded on the right; None is all T.
            attention_mask: The same in the manner of Hugging Face: 1 for tokens, 0 for padding.
            mask: bool [T, T] or [B, T, T] (for a list: [T_i, T_i] each), True = may attend; for
                families that were exported with masks.
            token_type_ids: Integers in the shape of the token ids.
            output: Whether to fetch the encoder's output.
            pooled: Whether to fetch the pooled output; None is: where the model pools.
            tokens: Whether to fetch the tokens as strings; None is: for texts.
            attention: True for the weights of every layer, or the layers (-1 is the last).
            heads: The heads whose weights to fetch: 3, [0, 3] or range(4); None is all.
            queries: The positions whose rows of weights to fetch, likewise.
            dtype: What the weights cross the wire as: "FP32", "FP16" (half the bytes) or "UINT8" (a
                quarter; error up to 1/510). The result is float32 in any case.
            truncate: Cut texts that are too long, instead of refusing them.
            timeout: Seconds; None is no limit, ... is what the client was made with.

        Returns:
            The results, in the form of the inputs.

        Raises:
            InvalidRequest: The request is wrong; the message says where.
            PolyheadError: The call failed; `polyhead_client.errors` has the kinds.
        """
        deadline = self._deadline(timeout)
        batch = prepare(
            inputs, lengths=lengths, attention_mask=attention_mask, mask=mask, token_type_ids=token_type_ids
        )
        name = model or (yield from self._catalogue.family(deadline, batch.kind))
        if attention is not None and attention is not False and not name.endswith(f".{ATTENTION}"):
            name = f"{family_of(name)}.{ATTENTION}"
        info = yield from self._catalogue.model(name, version, deadline)
        _check_inputs(info, batch)
        selection = select(
            info,
            text=batch.kind == "text",
            output=output,
            pooled=pooled,
            tokens=tokens,
            attention=attention,
            heads=heads,
            queries=queries,
            dtype=dtype,
        )
        build = partial(
            request.build,
            info,
            batch,
            selection,
            version="" if version is None else str(version),
            truncate=truncate,
        )
        started_ns = time.perf_counter_ns()
        try:
            message, contents = yield from _infer(
                info, build, request.reply_bytes(info, batch, selection), deadline
            )
        except (NotFound, InvalidRequest):
            self._catalogue.forget(name)
            raise
        total_ns = time.perf_counter_ns() - started_ns
        encoding = read(message, contents, batch, selection, total_ns=total_ns)
        if encoding.version not in info.versions:
            self._catalogue.forget(name)
        return encoding

    def model(
        self, name: str | None = None, *, version: int | str | None = None, timeout: Timeout = ...
    ) -> Operation[ModelInfo]:
        """What the server says about a model; asked for once, then remembered.

        Args:
            name: A family such as `minilm`, or one graph of it such as `minilm.attention`; None is
                the only family that is served.
            version: None is the newest.
            timeout: Seconds; None is no limit, ... is what the client was made with.

        Raises:
            NotFound: There is no such model.
        """
        return (yield from self._catalogue.model(name, version, self._deadline(timeout)))

    def models(self, *, timeout: Timeout = ...) -> Operation[list[ServedModel]]:
        """Every model of the server, in every version, with its state."""
        return (yield from self._catalogue.models(self._deadline(timeout)))

    def metadata(self, *, timeout: Timeout = ...) -> Operation[ServerInfo]:
        """The server's name, version and protocol extensions."""
        deadline = self._deadline(timeout)
        reply = yield from call(
            "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse, deadline
        )
        return ServerInfo(name=reply.name, version=reply.version, extensions=tuple(reply.extensions))

    def statistics(
        self, model: str | None = None, *, timeout: Timeout = ...
    ) -> Operation[list[ModelStatistics]]:
        """What one model, or every model, has done since the server started.

        Raises:
            NotFound: There is no such model.
        """
        message = pb.ModelStatisticsRequest(name=model or "")
        reply = yield from call(
            "ModelStatistics", message, pb.ModelStatisticsResponse, self._deadline(timeout)
        )
        return [ModelStatistics.from_message(entry) for entry in reply.model_stats]

    def live(self, *, timeout: Timeout = ...) -> Operation[bool]:
        """Whether the server answers; False also where it cannot be reached."""
        deadline = self._deadline(timeout)
        try:
            return (
                yield from call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse, deadline)
            ).live
        except (Unavailable, DeadlineExceeded):
            return False

    def ready(self, model: str | None = None, *, timeout: Timeout = ...) -> Operation[bool]:
        """Whether the server, or one model of it, takes requests.

        False also where the server cannot be reached, or has no such model.
        """
        deadline = self._deadline(timeout)
        try:
            return (yield from self._ready(model, deadline))
        except (Unavailable, DeadlineExceeded, NotFound):
            return False

    def wait_until_ready(self, model: str | None = None, *, timeout: Timeout = ...) -> Operation[None]:
        """Returns when the server, or one model of it, takes requests.

        Raises:
            DeadlineExceeded: That did not happen in time.
            NotFound: There is no such model.
        """
        deadline = self._deadline(timeout)
        pause = _FIRST_PAUSE_S
        reason = "it is loading, or draining"
        while True:
            try:
                if (yield from self._ready(model, deadline)):
                    return
                if model is not None:
                    reason = (yield from self._catalogue.state(model, deadline)) or reason
            except Unavailable as error:
                reason = str(error)
            except DeadlineExceeded as error:
                name = self._target if model is None else f"{model} at {self._target}"
                raise DeadlineExceeded(
                    f"{name} was not ready within {deadline.timeout} s: {reason}",
                    code=error.code,
                    details=error.details,
                    request_id=error.request_id,
                ) from error
            yield Pause(seconds=deadline.clip(pause))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.after(self._timeout if isinstance(timeout, EllipsisType) else timeout)

    def _ready(self, model: str | None, deadline: Deadline) -> Operation[bool]:
        if model is None:
            return (
                yield from call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse, deadline)
            ).ready
        message = pb.ModelReadyRequest(name=model)
        return (yield from call("ModelReady", message, pb.ModelReadyResponse, deadline)).ready


def _infer(
    info: ModelInfo, build: Callable[..., bytes], size: int, deadline: Deadline
) -> Operation[tuple[pb.ModelInferResponse, Sequence[bytes | memoryview]]]:
    """Asks for a reply in one message where it fits into one, in parts otherwise."""
    streams = info.max_stream_reply_bytes is not None
    if not streams or info.max_reply_bytes is None or size <= info.max_reply_bytes:
        try:
            data = yield Call(rpc=RPCS["ModelInfer"], data=build(), deadline=deadline)
        except TooLarge as error:
            # Texts: only the server knows how many tokens they have, and so how large the reply is.
            if not streams or error.limit != "max_reply_bytes":
                raise
        else:
            message = parse(pb.ModelInferResponse, data)
            return message, message.raw_output_contents
    assembly = Assembly()
    last = assembly.add(
        (yield Stream(rpc=RPCS["ModelStreamInfer"], data=build(parts=True), deadline=deadline))
    )
    while not last:
        last = assembly.add((yield More()))
    return assembly.message, assembly.contents


def _check_inputs(info: ModelInfo, batch: Batch) -> None:
    spelled = {"text": "texts", "input_ids": "token ids (integers)", "x": "vectors (floats)"}
    if batch.kind not in info.inputs:
        taken = " or ".join(spelled[name] for name in spelled if name in info.inputs)
        raise InvalidRequest(f"inputs of {info.name} must be {taken}, was {spelled[batch.kind]}")
    for tensor in batch.tensors[1:]:
        if tensor.name not in info.inputs:
            raise InvalidRequest(
                f"{tensor.name} is no input of {info.name}, which takes {', '.join(info.inputs)}"
            )
