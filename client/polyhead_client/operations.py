"""The operations of both clients, as generators that do no input or output (see `polyhead_client.calls`).

`Client` and `AsyncClient` have a method for each operation, with its name, arguments and documentation. What
is made of encodings alone is in `polyhead_client.tasks`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias, Unpack

from numpy.typing import NDArray

from polyhead_client.arguments import check_name, check_prompt_name, check_version
from polyhead_client.asked import INPUTS, Asked, Wanted, presence_of
from polyhead_client.batch import Batch
from polyhead_client.calls import Call, Deadline, Gather, NextMessage, Operation, Stream
from polyhead_client.coalescing import Coalescer, Start
from polyhead_client.encoding import Encoding
from polyhead_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    PolyheadError,
    TooLarge,
    Unavailable,
)
from polyhead_client.inputs import Inputs, per_head, prepare, query_field, rows_field
from polyhead_client.parts import Assembly
from polyhead_client.places import AskedPlaces, read_interventions
from polyhead_client.reply import Results, read, read_message
from polyhead_client.request import EncodeTemplate, build, check_inputs, input_of, reply_bytes
from polyhead_client.requested import RequestedOutputs
from polyhead_client.selection import select
from polyhead_client.server_operations import ServerOperations, Timeout
from polyhead_client.splitting import MAX_IN_FLIGHT, JoinedResults, halves, locate_errors, plan
from polyhead_proto import RPCS
from polyhead_proto.names import (
    HEAD_MASK,
    HEAD_MIX,
    QUERY,
    QUERY_VECTORS,
    ROWS,
    TEXT,
    TRUNCATE,
    Property,
)
from polyhead_proto.wants import check_flag

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of sequences that are done, and of all."""

_INFER = RPCS["ModelInfer"]
# Replies from this size on come faster in parts.
_LARGE_REPLY_BYTES = 4 * 2**20
_MOST_ATTEMPTS = 4
"""The attempts to fetch a reply in parts that breaks off; as many as gRPC makes of a call."""
_SHORTEN = "shorten it or give truncate=True (polyhead infer: --truncate)"
"""What to do about a text that is too long."""


def refuse_copy(_client: object) -> NoReturn:
    """Reject that a client is pickled or copied.

    Raises:
        TypeError: Always.
    """
    raise TypeError("a client holds a connection, and cannot be pickled or copied: make one where it is used")


class Operations(ServerOperations):
    """Those of one client, `encode` among them."""

    def __init__(self, target: str, timeout: float | None, start: Start | None = None) -> None:
        """Prepare the operations.

        Args:
            target: See `ServerOperations`.
            timeout: See there.
            start: Starts the operations that send joined requests; None means that no calls are joined.
        """
        super().__init__(target, timeout)
        self._coalescer = None if start is None else Coalescer(_request, start)

    def close(self) -> None:
        """Cancel the calls that wait to be joined."""
        if self._coalescer is not None:
            self._coalescer.close()

    def encode(
        self,
        inputs: Inputs,
        *,
        text_pair: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        model: str | None = None,
        version: int | str | None = None,
        lengths: Any = None,
        attention_mask: Any = None,
        mask: Any = None,
        token_type_ids: Any = None,
        memory: Any = None,
        memory_lengths: Any = None,
        memory_mask: Any = None,
        head_mask: Any = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
        **wanted: Unpack[Wanted],
    ) -> Operation[Encoding]:
        """Encode one sequence or a batch; only the requested outputs cross the wire.

        A batch that exceeds the server's limits is sent as several requests, up to four at a time. Its
        results come back as one, in order.

        Args:
            inputs: One sequence: a text, floats [T, D], or token ids [T]. A batch: a list of these, each of
                its own length, or one array: floats [B, T, D] or token ids [B, T]. Results have the same
                form; see `Encoding`.
            text_pair: The second texts of pairs, in the form of the inputs, which are the first: a reranker's
                passages, with its queries as inputs.
            prompt_name: The prompt that the server puts before each text, such as `query`: one of
                `ModelInfo.prompts`. None means the model's default, an empty string no prompt.
            model: The family, such as `minilm`; None means the only one that takes such inputs.
            version: The version; None means the newest.
            lengths: Integers [B], 0..T, for an array that is padded on the right; None means all T.
            attention_mask: Hugging Face's equivalent of `lengths`: 1 for tokens, 0 for padding.
            mask: bool [T, T] or [B, T, T] (for a list: [T_i, T_i] each), True = may attend; for
                families that were exported with masks.
            token_type_ids: Integers in the shape of the token ids.
            memory: The vectors that the inputs attend to, for families with cross-attention: floats [S, D]
                for one sequence; for a batch [B, S, D], or a list of [S_i, D].
            memory_lengths: Integers [B], 0..S, for a memory array that is padded on the right.
            memory_mask: bool [T, S] or [B, T, S] (where inputs or memory are a list: [T_i, S_i] each), True =
                may attend; as `mask`, but for the attention to the memory.
            head_mask: Factors [L, H] or [B, L, H], 0..1, on what each head adds: 0 silences it. For families
                that were exported with head masks.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of sequences that are done, and of all.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.
            **wanted: See `Wanted`.

        Returns:
            The results, in the form of the inputs. Arrays are read-only views of the reply; `array.copy()`
            and `torch.tensor(array)` give writable copies. A view keeps the whole reply in memory, so copy a
            small part that you keep for long.

        Raises:
            InvalidRequest: The request is not valid; the message says where.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        deadline = self._deadline(timeout)
        if progress is not None and not callable(progress):
            raise InvalidRequest(f"progress must be a function of two numbers, or None, was {progress!r}")
        batch = prepare(
            inputs,
            text_pair=text_pair,
            lengths=lengths,
            attention_mask=attention_mask,
            mask=mask,
            token_type_ids=token_type_ids,
            memory=memory,
            memory_lengths=memory_lengths,
            memory_mask=memory_mask,
        )
        chosen: Mapping[str, Any] = wanted
        asked_of = None
        if not INPUTS.isdisjoint(wanted):
            asked_of = read_interventions(wanted.get("read"), wanted.get("edits"), batch)
            chosen = presence_of(wanted) | ({} if asked_of is None else {"read": asked_of.roles})
        form = self._models.forms.find((batch.kind, model, version, prompt_name, truncate), chosen)
        if (template := form.template) is None:
            template = form.template = yield from self._template(
                batch,
                chosen,
                deadline,
                model=model,
                version=version,
                prompt_name=prompt_name,
                truncate=truncate,
            )
        elif len(batch.fields) > 1:
            check_inputs(template.info, batch)
        info, requested = template.info, template.requested
        if requested.rows and requested.queries is not None:
            batch = batch.with_fields(rows_field(requested.queries, batch))
        for field, value in ((HEAD_MIX, wanted.get("head_mix")), (HEAD_MASK, head_mask)):
            if value is not None:
                batch = batch.with_fields(per_head(input_of(info, field), value, batch))
        if (query_vectors := wanted.get("query_vectors")) is not None:
            batch = batch.with_fields(query_field(input_of(info, QUERY_VECTORS), query_vectors, batch))
        if asked_of is not None:
            counts = batch.lengths
            if counts is None and asked_of.edits_every_token:
                counts = yield from self._count_tokens(template, batch, deadline)
            batch = batch.with_fields(*asked_of.fields(info, counts))
        # What is joined has one length, and a memory has another.
        coalescer = None if batch.kind == QUERY else self._coalescer
        send = _request if coalescer is None else coalescer.encode
        started_ns = time.perf_counter_ns()
        try:
            results = yield from _encode_batch(template, batch, deadline, send, progress)
        except (NotFound, InvalidRequest) as error:
            self._models.forget(model or info.name)
            _rephrase(error, asked_of)
            raise
        if results.version not in info.versions:
            self._models.forget(model or info.name)
        encoding = results.encoding(requested, batch, time.perf_counter_ns() - started_ns)
        return encoding if asked_of is None else _with_reads(encoding, asked_of, results.lengths)

    def _count_tokens(
        self, template: EncodeTemplate, batch: Batch, deadline: Deadline
    ) -> Operation[NDArray[Any]]:
        """Count the tokens of texts, [B]; the server tokenises them, and computes nothing else."""
        nothing = {"output": False, "pooled": False, "logits": False, "tokens": True}
        counting = replace(template, requested=select(template.info, Asked.read(nothing, text=True)))
        return (yield from _encode_batch(counting, batch, deadline, _request, None)).lengths

    def _template(
        self,
        batch: Batch,
        chosen: Mapping[str, Any],
        deadline: Deadline,
        *,
        model: str | None,
        version: int | str | None,
        prompt_name: str | None,
        truncate: bool,
    ) -> Operation[EncodeTemplate]:
        """Return the template of requests with these arguments of `encode`; `chosen` are those of outputs."""
        wanted_version = check_version(version)
        check_flag("truncate", truncate)
        check_prompt_name(prompt_name, is_text=batch.kind == TEXT)
        asked = Asked.read(chosen, text=batch.kind == TEXT)
        name = check_name(model) or (yield from self._models.family(deadline, batch.kind))
        info = yield from self._models.model(name, version, deadline)
        if asked.roles:
            info = yield from self._models.with_outputs(info, asked, version, deadline)
        elif not asked.given.get("output", True):
            info = yield from self._models.of_sequences(info, version, deadline)
        check_inputs(info, batch)
        return EncodeTemplate(
            info=info,
            requested=select(info, asked),
            version=wanted_version,
            truncate=truncate,
            prompt_name=prompt_name,
        )


def _rephrase(error: PolyheadError, asked_of: AskedPlaces | None) -> None:
    """Have an error name what is wrong as the arguments of `encode` do."""
    if (fault := error.fault) is None:
        return
    if fault.field == ROWS:
        error.rephrase(replace(fault, field="queries"))
    elif asked_of is not None:
        error.rephrase(asked_of.renamed(fault))
    elif fault.parameter == TRUNCATE:
        error.rephrase(replace(fault, remedy=_SHORTEN))


def _with_reads(encoding: Encoding, asked_of: AskedPlaces, lengths: NDArray[Any]) -> Encoding:
    """Check places of texts, whose lengths are known now, and trim what was read."""
    asked_of.check_tokens(lengths)
    if isinstance(encoding.lengths, int):
        return encoding
    return replace(
        encoding,
        stream=asked_of.trimmed(encoding.stream, heads=False),
        head_outputs=asked_of.trimmed(encoding.head_outputs, heads=True),
    )


def _encode_batch(
    template: EncodeTemplate,
    batch: Batch,
    deadline: Deadline,
    send: Callable[[EncodeTemplate, Batch, Deadline], Operation[Results]],
    progress: Progress | None,
) -> Operation[Results]:
    """Encode a batch, in one request if the server's limits allow it, in several otherwise."""
    parts = plan(template.info, batch, template.requested)
    if len(parts) == 1:
        try:
            results = yield from send(template, batch, deadline)
        except TooLarge:
            if batch.size == 1:
                raise
            parts = halves(parts[0])
        else:
            if progress is not None:
                progress(batch.size, batch.size)
            return results
    joined, done = JoinedResults(batch), 0

    def on_result(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, batch.size)

    try:
        yield Gather(
            operations=[_encode_part(template, batch, deadline, part, joined) for part in parts],
            max_in_flight=MAX_IN_FLIGHT,
            on_result=on_result,
        )
    except DeadlineExceeded as error:
        error.args = (f"{error}; {done} of {batch.size} sequences were encoded in time: give it more",)
        raise
    return joined.results()


def _encode_part(
    template: EncodeTemplate, batch: Batch, deadline: Deadline, part: slice, joined: JoinedResults
) -> Operation[int]:
    """Encode a part of a batch, in halves if the server rejects it as too large; return its size."""
    size: int = part.stop - part.start
    try:
        with locate_errors(part):
            # Several parts are in flight, so only what cannot be halved may be as large as a streamed reply.
            results = yield from _request(template, batch.part(part), deadline, stream=size == 1)
    except TooLarge:
        if size == 1:
            raise
        for half in halves(part):
            yield from _encode_part(template, batch, deadline, half, joined)
    else:
        with locate_errors(part):
            joined.put(part, results)
    return size


def _request(
    template: EncodeTemplate, batch: Batch, deadline: Deadline, *, stream: bool = True
) -> Operation[Results]:
    """Encode a batch with one request.

    Args:
        template: The template of the request.
        batch: The sequences.
        deadline: The deadline of the call.
        stream: Whether a reply that exceeds the size of a message may come in parts. One that fits comes in
            parts from some MiB on, because that is faster.
    """
    info, requested = template.info, template.requested
    most, in_parts = info.max_stream_reply_bytes, False
    if batch.tokens is not None and most is not None:
        size = reply_bytes(requested, size=batch.size, tokens=batch.tokens, memory=batch.memory_tokens)
        fits = info.max_reply_bytes is None or size <= info.max_reply_bytes
        in_parts = _LARGE_REPLY_BYTES <= size <= most if fits else stream
    if not in_parts:
        try:
            data = yield Call(rpc=_INFER, data=build(template, batch), deadline=deadline)
        except TooLarge as error:
            # Only the server knows how many tokens texts have, and so how large the reply is.
            if most is None or not stream or error.limit != Property.MAX_REPLY_BYTES:
                raise
        else:
            return read_message(data, batch, requested)
    return (yield from _request_in_parts(build(template, batch, parts=True), batch, requested, deadline))


def _request_in_parts(
    data: bytes, batch: Batch, requested: RequestedOutputs, deadline: Deadline
) -> Operation[Results]:
    """Fetch a reply in parts; from the beginning again if it breaks off, perhaps from another server."""
    for retries in reversed(range(_MOST_ATTEMPTS)):
        assembly = Assembly()
        streamed = Stream(rpc=RPCS["ModelStreamInfer"], data=data, deadline=deadline)
        last = assembly.add((yield streamed))
        try:
            while not last:
                last = assembly.add((yield NextMessage(stream=streamed)))
            break
        except Unavailable as error:  # which gRPC does not retry after the first message
            if not retries or (error.retry_after or 0) < 0:
                raise
    return read(assembly.message, assembly.contents, batch, requested)
