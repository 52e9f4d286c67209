"""Calls of other APIs: each becomes inference requests for chunks of its inputs.

Shape letters: B inputs.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import INPUT_IDS, LENGTHS, PROMPT_NAME, TEXT, TEXT_PAIR, TOKENS, TRUNCATE
from polyhead_server.errors import RequestError, TooLargeError
from polyhead_server.http.caller import Caller
from polyhead_server.http.fields import TextOptions
from polyhead_server.http.tensors import Values, write_parameters
from polyhead_server.inference.reply import InferReply, detach
from polyhead_server.inference.wire import LARGE, InferRequest, InputContent
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.tokeniser import check_total, padded
from polyhead_server.settings import Settings

Input = str | tuple[str, str] | list[int]
"""What a call gives: a text, a pair of texts, or token ids."""

Options_co = TypeVar("Options_co", bound=TextOptions, covariant=True)

Kept = Sequence[NDArray[Any]]
"""What a call keeps of the reply to a chunk: outputs (B, …), the lengths last."""


# ---- Requests and replies ----------------------------------------------------------------------


def _request_of(
    signature: Signature, outputs: pb.ModelInferRequest, inputs: Sequence[Any], most_tokens: int
) -> InferRequest:
    """Return the request for inputs of one kind."""
    message, contents, size = pb.ModelInferRequest(), list[InputContent](), 0
    message.CopyFrom(outputs)
    if isinstance(inputs[0], list):
        longest = max(map(len, inputs))
        check_total(len(inputs), longest, most_tokens)
        ids = padded(inputs, np.zeros((len(inputs), longest), np.int64))
        arrays = (ids, np.array(list(map(len, inputs)), np.int64))
        for role, array in zip((TOKENS, LENGTHS), arrays, strict=True):
            if (spec := signature.inputs_by_role.get(role)) is not None:
                message.inputs.add(name=spec.name, datatype="INT64", shape=array.shape)
                contents.append(array)
                size += array.nbytes
    else:
        columns = [list(inputs)] if isinstance(inputs[0], str) else map(list, zip(*inputs, strict=True))
        for name, texts in zip((TEXT, TEXT_PAIR), columns, strict=False):
            message.inputs.add(name=name, datatype="BYTES", shape=[len(texts)])
            contents.append(texts)
            size += sum(map(len, texts))
    header = message.SerializeToString(deterministic=True)
    return InferRequest(header=header, request_id="", contents=contents, size=len(header) + size)


def keep_arrays(reply: InferReply) -> Kept:
    """Return the outputs of a reply to a chunk; may be called in any thread."""
    return [np.asarray(each) for each in detach(reply).contents]


def joined(chunks: Sequence[Kept]) -> tuple[list[NDArray[Any]], int]:
    """Return the outputs (B, …) of all chunks, in fp32 where they are fractions, and the number of tokens."""
    *outputs, lengths = map(np.concatenate, zip(*chunks, strict=True))
    return (
        [each.astype(np.float32, copy=False) if each.dtype.kind == "f" else each for each in outputs],
        int(lengths.sum()),
    )


def write_array(items: Iterable[object]) -> Iterator[bytes]:
    """Write a JSON array, element by element."""
    yield b"["
    for index, item in enumerate(items):
        yield b"," * bool(index) + orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"]"


# ---- Lists in chunks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TextCall(Generic[Options_co]):
    """A call that asks something of a list of inputs."""

    caller: Caller
    options: Options_co
    """What it says of them."""
    field: str
    """What it calls an input; with `[]`, one of many."""
    inputs: Sequence[Any]
    """B of them: texts, pairs of texts, or lists of token ids."""


async def answer_list(
    call: TextCall[TextOptions],
    signature: Signature,
    outputs: Iterable[str],
    *,
    first_text: str = "",
    prompt: str | None = None,
    of_first: Values = MappingProxyType({}),
    keep: Callable[[InferReply], Kept] = keep_arrays,
    written_bytes: int = 0,
) -> list[Kept]:
    """Return what is kept of the replies to chunks of a list, each made when its turn comes.

    One that is too large is sent in halves, and so are all larger ones after it.

    Args:
        call: Has the list.
        signature: Of the graph that answers.
        outputs: Those to keep, beside the lengths.
        first_text: What the call calls the first text of each pair, if that is no part of the input.
        prompt: The name of the prompt before each text; None: the family's own.
        of_first: Parameters of the first output, unless they are None.
        keep: Returns what is kept of the reply to a chunk; may be called in any thread.
        written_bytes: The most bytes that `keep` writes for an input in place of outputs, which takes long,
            and which no message limits; 0: it only copies.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    caller, inputs, settings = call.caller, call.inputs, call.caller.service.settings
    called = dict.fromkeys((TEXT, TEXT_PAIR, INPUT_IDS), call.field) | (
        {TEXT: first_text} if first_text else {}
    )
    sizes = _sizes_of(inputs)
    parameters = caller.parameters | {TRUNCATE: call.options.truncate, PROMPT_NAME: prompt}
    message = pb.ModelInferRequest(model_name=signature.name, parameters=write_parameters(parameters))
    first, *others = *outputs, LENGTHS
    message.outputs.add(name=first, parameters=write_parameters(of_first))
    for name in others:
        message.outputs.add(name=name)

    async def answer(chunk: range) -> Kept:
        before = caller.held.bytes
        kept: Kept = []
        part = inputs[chunk.start : chunk.stop]
        work = sum([sizes[at].text_bytes + sizes[at].tokens for at in chunk])
        made = await caller.service.run(
            work, _request_of, signature, message, part, settings.max_request_tokens
        )
        caller.held.add(made.size + len(chunk) * written_bytes)
        try:
            if written_bytes:
                made.most_bytes = settings.max_working_bytes if len(chunk) == 1 else None
                made.kept_bytes = LARGE
            kept = await caller.infer(made, keep)
            return kept
        finally:
            caller.held.add(before + sum([each.nbytes for each in kept]) - caller.held.bytes)

    answers: list[Kept] = []
    waiting, most = deque(_chunks(sizes, settings)), math.inf
    while waiting:
        chunk = waiting.popleft()
        if len(chunk) > most:
            middle = len(chunk) // 2
            waiting.extendleft((chunk[middle:], chunk[:middle]))
            continue
        try:
            with _located(called, chunk):
                answers.append(await answer(chunk))
        except TooLargeError:
            if len(chunk) == 1:
                raise
            most = -(-len(chunk) // 2)
            waiting.appendleft(chunk)
    return answers


class _Size(NamedTuple):
    """The size of an input."""

    kind: type
    tokens: int
    """0 where only the tokeniser knows it."""
    text_bytes: int
    """Of all its texts; 0 of token ids."""


def _sizes_of(inputs: Sequence[Input]) -> list[_Size]:
    @cache  # pairs may have one text in common
    def bytes_of(text: str) -> int:
        return len(text) if text.isascii() else len(text.encode())

    def size(given: Input) -> _Size:
        if isinstance(given, list):
            return _Size(list, len(given), 0)
        return _Size(type(given), 0, sum(map(bytes_of, [given] if isinstance(given, str) else given)))

    return list(map(size, inputs))


def _chunks(sizes: Sequence[_Size], settings: Settings) -> list[range]:
    """Divide inputs into inference requests. Only the tokeniser knows whether texts are too many."""
    chunks: list[range] = []
    start = longest = total = 0
    for index, each in enumerate(sizes):
        longest, total, size = max(longest, each.tokens), total + each.text_bytes, index + 1 - start
        is_large = size * longest > settings.max_request_tokens or total > settings.max_text_bytes
        is_other = each.kind is not sizes[start].kind
        if size > settings.max_batch_size or (size > 1 and (is_large or is_other)):
            chunks.append(range(start, index))
            start, longest, total = index, each.tokens, each.text_bytes
    return [*chunks, range(start, len(sizes))]


@contextmanager
def _located(called: Mapping[str, str], chunk: range) -> Iterator[None]:
    """Make errors name inputs as the caller does, and by their positions in the list."""
    try:
        yield
    except RequestError as error:
        if (fault := error.fault) is not None:
            place = f"[{chunk.start + fault.index[0]}]" if fault.index else ""
            field, also = (
                called.get(name, f"{name}[]").replace("[]", place) if name else ""
                for name in (fault.field, fault.also)
            )
            error.rephrase(replace(fault, field=field, also=also, index=()))
        raise
