"""Calls of other APIs: each becomes inference requests for chunks of its inputs.

Shape letters: B inputs.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import INPUT_IDS, LENGTHS, PROMPT_NAME, TEXT, TEXT_PAIR, TOKENS, TRUNCATE
from polyhead_server.errors import RequestError, TooLargeError
from polyhead_server.http.caller import Caller
from polyhead_server.http.fields import TextOptions
from polyhead_server.http.tensors import Values, write_parameters
from polyhead_server.inference.reply import InferReply, detached
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
    signature: Signature, message: pb.ModelInferRequest, inputs: Sequence[Any], most_tokens: int
) -> InferRequest:
    """Return the request for inputs of one kind."""
    contents, size = list[InputContent](), 0
    message.ClearField("inputs")
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
    return [np.asarray(detached(each)) for each in reply.contents]


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
    called = {TEXT: first_text or call.field, TEXT_PAIR: call.field, INPUT_IDS: call.field}
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
        most = settings.max_request_tokens
        made = await caller.service.run(sum(map(len, part)), _request_of, signature, message, part, most)
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
    waiting, longest = deque(_chunks(inputs, settings)), math.inf
    while waiting:
        chunk = waiting.popleft()
        if len(chunk) > longest:
            middle = len(chunk) // 2
            waiting.extendleft((chunk[middle:], chunk[:middle]))
            continue
        try:
            answers.append(await answer(chunk))
        except RequestError as error:
            if len(chunk) == 1 or not isinstance(error, TooLargeError):
                _locate(error, called, chunk.start)
                raise
            longest = -(-len(chunk) // 2)
            waiting.appendleft(chunk)
    return answers


def _chunks(inputs: Sequence[Input], settings: Settings) -> list[range]:
    """Divide inputs into inference requests. Only the tokeniser knows whether texts are too many."""

    @cache  # pairs may have one text in common
    def bytes_of(text: str) -> int:
        return len(text) if text.isascii() else len(text.encode())

    chunks: list[range] = []
    start = longest = total = 0
    for index, given in enumerate(inputs):
        tokens = len(given) if isinstance(given, list) else 0
        text_bytes = (
            0 if isinstance(given, list) else sum(map(bytes_of, [given] if isinstance(given, str) else given))
        )
        longest, total, size = max(longest, tokens), total + text_bytes, index + 1 - start
        is_large = size * longest > settings.max_request_tokens or total > settings.max_text_bytes
        is_other = type(given) is not type(inputs[start])
        if size > settings.max_batch_size or (size > 1 and (is_large or is_other)):
            chunks.append(range(start, index))
            start, longest, total = index, tokens, text_bytes
    return [*chunks, range(start, len(inputs))]


def _locate(error: RequestError, called: Mapping[str, str], start: int) -> None:
    """Make an error name an input as the caller does, and by its position in the list."""
    if (fault := error.fault) is not None:
        place = f"[{start + fault.index[0]}]" if fault.index else ""
        field, also = (
            called.get(name, f"{name}[]").replace("[]", place) if name else ""
            for name in (fault.field, fault.also)
        )
        error.rephrase(replace(fault, field=field, also=also, index=()))
