"""Calls of other APIs: each becomes inference requests for chunks of its inputs.

Shape letters: B inputs.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import messages as pb
from polyhead_proto.names import LENGTHS
from polyhead_server.errors import RequestError, TooLargeError
from polyhead_server.http.caller import Caller
from polyhead_server.http.tensors import Values, pack, write_parameters
from polyhead_server.inference.reply import InferReply, detach
from polyhead_server.inference.wire import LARGE, InferRequest, make_request
from polyhead_server.repository.signature import Signature
from polyhead_server.settings import Settings

_NAMED = re.compile(r"(?:^|(?<=of )|(?<=and ))(text_pair|text|input_ids)\b(?:\[(\d+)[^]]*\])?")
"""What messages about an inference request call an input of the call."""


# ---- Requests ----------------------------------------------------------------------------------


class InputSize(NamedTuple):
    """The size of an input."""

    tokens: int
    """0 where only the tokeniser knows it."""
    text_bytes: int
    """Of all its texts; 0 of token ids."""
    is_pair: bool = False
    """A request has pairs alone, or none."""


def text_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def message_of(
    signature: Signature, outputs: Iterable[str | None], parameters: Values
) -> pb.ModelInferRequest:
    """Return a request for outputs and the lengths, without inputs."""
    message = pb.ModelInferRequest(model_name=signature.name, parameters=write_parameters(parameters))
    for name in (*outputs, LENGTHS):
        message.outputs.add(name=name)
    return message


def request_of_texts(message: pb.ModelInferRequest, texts: Mapping[str, Sequence[Any]]) -> InferRequest:
    """Return a request with inputs of texts, by the names of their tensors."""
    for name, each in texts.items():
        message.inputs.add(name=name, datatype="BYTES", shape=[len(each)])
    return make_request(message, [pack(name, "BYTES", [len(each)], each) for name, each in texts.items()])


# ---- Replies -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """What a call keeps of the reply to a chunk."""

    arrays: Sequence[NDArray[Any]]
    """Outputs (B, …), the lengths last."""
    written: Sequence[bytes] = ()
    """What is written already, as JSON."""

    @property
    def size(self) -> int:
        """The bytes of memory that it takes."""
        return sum(each.nbytes for each in self.arrays) + sum(map(len, self.written))


def keep_arrays(reply: InferReply) -> Kept:
    """Return the outputs of a reply to a chunk; may be called in any thread."""
    return Kept([np.asarray(each) for each in detach(reply).contents])


def joined(kept: Sequence[Kept]) -> tuple[list[NDArray[Any]], int]:
    """Return the outputs (B, …) of all chunks, in fp32 where they are fractions, and the number of tokens."""
    *outputs, lengths = zip(*(each.arrays for each in kept), strict=True)
    arrays = [np.concatenate(each) for each in outputs]
    return (
        [each.astype(np.float32, copy=False) if each.dtype.kind == "f" else each for each in arrays],
        int(sum(each.sum() for each in lengths)),
    )


def write_array(items: Iterable[object]) -> Iterator[bytes]:
    """Write a JSON array, element by element."""
    yield b"["
    for index, item in enumerate(items):
        yield b"," * bool(index) + orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"]"


# ---- Lists in chunks ---------------------------------------------------------------------------


async def answer_list(
    caller: Caller,
    sizes: Sequence[InputSize],
    request: Callable[[range], InferRequest],
    names: Mapping[str, str],
    *,
    keep: Callable[[InferReply], Kept] = keep_arrays,
    written_bytes: int = 0,
    most_bytes_of_one: int | None = None,
) -> list[Kept]:
    """Return what is kept of the replies to chunks of a list, each made when its turn comes.

    One that is too large is sent in halves, and so are all larger ones after it.

    Args:
        caller: Has sent the list.
        sizes: The size of each of B inputs.
        request: Makes the request for a chunk; may be called in any thread.
        names: What the caller calls the tensors that inputs become. Without `[]`, it is one for all of them.
        keep: Returns what is kept of the reply to a chunk; may be called in any thread.
        written_bytes: The most bytes that `keep` writes for an input, which takes long; 0: it only copies.
        most_bytes_of_one: The most bytes of the reply to a chunk of one input; None: those of a message.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """

    async def answer(chunk: range) -> Kept:
        before, kept = caller.held.bytes, None
        work = sum(each.text_bytes + each.tokens for each in sizes[chunk.start : chunk.stop])
        made = await caller.service.run(work, request, chunk)
        caller.held.add(made.size + len(chunk) * written_bytes)
        try:
            kept = await caller.infer(
                made,
                keep,
                most_bytes=most_bytes_of_one if len(chunk) == 1 else None,
                work_bytes=LARGE if written_bytes else 0,
            )
            return kept
        finally:
            caller.held.add(before + (0 if kept is None else kept.size) - caller.held.bytes)

    answers: list[Kept] = []
    waiting, most = deque(_chunks(sizes, caller.service.settings)), math.inf
    while waiting:
        chunk = waiting.popleft()
        if len(chunk) > most:
            middle = len(chunk) // 2
            waiting.extendleft((chunk[middle:], chunk[:middle]))
            continue
        try:
            with _located(names, chunk):
                answers.append(await answer(chunk))
        except TooLargeError:
            if len(chunk) == 1:
                raise
            most = -(-len(chunk) // 2)
            waiting.appendleft(chunk)
    return answers


def _chunks(sizes: Sequence[InputSize], settings: Settings) -> list[range]:
    """Divide inputs into inference requests. Only the tokeniser knows whether texts are too many."""
    chunks: list[range] = []
    start = longest = total = 0
    for index, each in enumerate(sizes):
        longest, total, size = max(longest, each.tokens), total + each.text_bytes, index + 1 - start
        is_large = size * longest > settings.max_request_tokens or total > settings.max_text_bytes
        is_other = each.is_pair is not sizes[start].is_pair
        if size > settings.max_batch_size or (size > 1 and (is_large or is_other)):
            chunks.append(range(start, index))
            start, longest, total = index, each.tokens, each.text_bytes
    return [*chunks, range(start, len(sizes))]


@contextmanager
def _located(names: Mapping[str, str], chunk: range) -> Iterator[None]:
    """Make errors name inputs as the caller does, and by their positions in the list."""

    def renamed(found: re.Match[str]) -> str:
        name, index = names.get(found[1], found[0]), found[2]
        if index is None or not name.endswith("[]"):
            return name.removesuffix("[]")
        return f"{name.removesuffix('[]')}[{chunk.start + int(index)}]"

    try:
        yield
    except RequestError as error:
        error.args = (_NAMED.sub(renamed, str(error)),)
        raise
