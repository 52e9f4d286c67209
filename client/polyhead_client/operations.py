"""What a client does, without doing any input or output itself.

Each operation is a generator: it yields a `Call` (or a `Pause`), is sent the reply's bytes, and
returns its result. `Client` and `AsyncClient` only drive these generators, each over its own kind
of channel, so names, arguments and everything behind them are written once: here.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, TypeAlias

from polyhead_client import request
from polyhead_client.arguments import check_flag, check_name, check_timeout, check_version
from polyhead_client.calls import Call, More, Operation, Pause, Stream, Together, call
from polyhead_client.catalogue import Catalogue
from polyhead_client.deadline import Deadline
from polyhead_client.encoding import Encoding
from polyhead_client.errors import DeadlineExceeded, InvalidRequest, NotFound, TooLarge, Unavailable
from polyhead_client.inputs import Batch, Inputs, prepare
from polyhead_client.messages import parse_reply
from polyhead_client.models import ModelInfo, ModelStatistics, ServedModel, ServerInfo
from polyhead_client.parts import Assembly
from polyhead_client.reply import read
from polyhead_client.selection import Indices, Selection, select
from polyhead_client.splitting import AT_ONCE, Joined, halves, naming, plan
from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import Precision
from polyhead_proto.names import TEXT

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many sequences are done, and of how many."""

Timeout: TypeAlias = float | EllipsisType | None
"""Seconds; None is no limit, ... is what the client was made with."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


class Operations:
    """The operations of one client."""

    def __init__(self, target: str, timeout: float | None) -> None:
        self._target = target
        self._timeout = check_timeout(timeout)
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
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[Encoding]:
        """Runs an encoder on one sequence or a batch; only what is asked for crosses the wire.

        A batch that is larger than the server takes at once is sent as several requests, up to four at a
        time, and comes back as one, in order.

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
            progress: Called with the numbers of sequences that are done, and of all, whenever a request is.
            timeout: Seconds for all of it; None is no limit, ... is what the client was made with.

        Returns:
            The results, in the form of the inputs. Arrays are read-only views of the reply: `array.copy()` or
            `torch.tensor(array)` gives one to write to. A view keeps the whole reply in memory: copy what is
            kept for long where much more was asked for.

        Raises:
            InvalidRequest: The request is wrong; the message says where.
            PolyheadError: The call failed; `polyhead_client.errors` has the kinds.
        """
        deadline = self._deadline(timeout)
        wanted_version = check_version(version)
        check_flag("output", output)
        check_flag("pooled", pooled, optional=True)
        check_flag("tokens", tokens, optional=True)
        check_flag("truncate", truncate)
        if progress is not None and not callable(progress):
            raise InvalidRequest(f"progress must be a function of two numbers, or None, was {progress!r}")
        batch = prepare(
            inputs, lengths=lengths, attention_mask=attention_mask, mask=mask, token_type_ids=token_type_ids
        )
        name = check_name(model) or (yield from self._catalogue.family(deadline, batch.kind))
        info = yield from self._catalogue.model(name, version, deadline)
        if attention is not None and attention is not False:
            info = yield from self._catalogue.with_attention(info, version, deadline)
        _check_inputs(info, batch)
        selection = select(
            info,
            text=batch.kind == TEXT,
            output=output,
            pooled=pooled,
            tokens=tokens,
            attention=attention,
            heads=heads,
            queries=queries,
            dtype=dtype,
        )
        ask = _Ask(
            info=info,
            selection=selection,
            version=wanted_version,
            truncate=truncate,
            deadline=deadline,
        )
        started_ns = time.perf_counter_ns()
        try:
            encoding = yield from _encode(ask, batch, progress)
        except (NotFound, InvalidRequest):
            self._catalogue.forget(name)
            raise
        if encoding.version not in info.versions:
            self._catalogue.forget(name)
        total_ns = time.perf_counter_ns() - started_ns
        return replace(encoding, timings=replace(encoding.timings, total_ns=total_ns))

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
        return (yield from self._catalogue.model(check_name(name), version, self._deadline(timeout)))

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
        message = pb.ModelStatisticsRequest(name=check_name(model) or "")
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
        if check_name(model) is None:
            return (
                yield from call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse, deadline)
            ).ready
        message = pb.ModelReadyRequest(name=model)
        return (yield from call("ModelReady", message, pb.ModelReadyResponse, deadline)).ready


@dataclass(frozen=True, kw_only=True)
class _Ask:
    """What is asked of every part of one `encode`."""

    info: ModelInfo
    selection: Selection
    version: str
    truncate: bool
    deadline: Deadline


def _encode(ask: _Ask, batch: Batch, progress: Progress | None) -> Operation[Encoding]:
    """Asks for a batch with one request where that is enough, with several otherwise."""
    parts = plan(ask.info, batch, ask.selection)
    if len(parts) == 1:
        try:
            encoding = yield from _one(ask, batch)
        except TooLarge:
            if batch.size == 1:
                raise
            parts = halves(parts[0])
        else:
            if progress is not None:
                progress(batch.size, batch.size)
            return encoding
    joined, done = Joined(batch), 0

    def ended(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, batch.size)

    try:
        yield Together(
            operations=[_part(ask, batch, part, joined) for part in parts], at_once=AT_ONCE, ended=ended
        )
    except DeadlineExceeded as error:
        error.args = (f"{error}; {done} of {batch.size} sequences were encoded in time: give it more",)
        raise
    return joined.encoding()


def _part(ask: _Ask, batch: Batch, part: slice, joined: Joined) -> Operation[int]:
    """Asks for a part of a batch, in halves where the server refuses it as too large; returns its size."""
    size: int = part.stop - part.start
    try:
        with naming(part):
            # Several parts are under way: only what cannot be halved may be as large as a stream can be.
            encoding = yield from _one(ask, batch.part(part), stream=size == 1)
    except TooLarge:
        if size == 1:
            raise
        for half in halves(part):
            yield from _part(ask, batch, half, joined)
    else:
        with naming(part):
            joined.put(part, encoding)
    return size


def _one(ask: _Ask, batch: Batch, *, stream: bool = True) -> Operation[Encoding]:
    """Asks for a batch with one request.

    Args:
        ask: What is asked.
        batch: Of which sequences.
        stream: Whether a reply that does not fit into one message may come in parts.
    """
    info, deadline = ask.info, ask.deadline
    build = partial(request.build, info, batch, ask.selection, version=ask.version, truncate=ask.truncate)
    size = request.reply_bytes(info, ask.selection, size=batch.size, tokens=batch.tokens)
    stream = stream and info.max_stream_reply_bytes is not None
    if not stream or info.max_reply_bytes is None or size <= info.max_reply_bytes:
        try:
            data = yield Call(rpc=RPCS["ModelInfer"], data=build(), deadline=deadline)
        except TooLarge as error:
            # Texts: only the server knows how many tokens they have, and so how large the reply is.
            if not stream or error.limit != "max_reply_bytes":
                raise
        else:
            reply = parse_reply(data, pb.ModelInferResponse)
            return read(reply.message, reply.contents, batch, ask.selection)
    assembly = Assembly()
    last = assembly.add(
        (yield Stream(rpc=RPCS["ModelStreamInfer"], data=build(parts=True), deadline=deadline))
    )
    while not last:
        last = assembly.add((yield More()))
    return read(assembly.message, assembly.contents, batch, ask.selection)


def _check_inputs(info: ModelInfo, batch: Batch) -> None:
    spelled = {TEXT: "texts", "input_ids": "token ids (integers)", "x": "vectors (floats)"}
    if batch.kind not in info.inputs:
        taken = " or ".join(spelled[name] for name in spelled if name in info.inputs)
        raise InvalidRequest(f"inputs of {info.name} must be {taken}, was {spelled[batch.kind]}")
    for field in batch.fields[1:]:
        if field.name not in info.inputs:
            raise InvalidRequest(
                f"{field.name} is no input of {info.name}, which takes {', '.join(info.inputs)}"
            )
