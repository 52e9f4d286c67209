"""Requests for the engine: joined for one run, its outputs split again, or cut into pieces themselves.

Attention is padded to the longest sequence of a run. So a piece has sequences of like length.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.tensors import TensorSpec
from polyhead_server.engine.engine import Arrays
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.dispatch import Dispatch

PRIORITIES = 5
"""Priorities go from 1, the highest, to this."""
DEFAULT_PRIORITY = 3
"""What 0, and anything above the last priority, stands for, as in Triton."""


def level_of(priority: int) -> int:
    """Return the index in the queue of a request's priority: 0 is that of the highest."""
    return (priority if 1 <= priority <= PRIORITIES else DEFAULT_PRIORITY) - 1


@dataclass(kw_only=True, slots=True, eq=False)
class Work:
    """One request for the engine. Made once per request, and not frozen: that takes three times as long."""

    feeds: Arrays
    """Every input of the graph, (B, …)."""
    outputs: Sequence[str]
    size: Size
    real_tokens: int
    """Without padding."""
    deadline: float = math.inf
    """When the caller stops waiting, in the event loop's time."""
    timeout: float | None = None
    """The longest that it may wait to start, in seconds. None is the server's limit."""
    level: int = level_of(0)
    """The index of its priority in the queue, from 0, see `level_of`."""


@dataclass(kw_only=True, slots=True, eq=False)
class Done:
    """The engine's result for one `Work`."""

    outputs: Arrays
    """The requested outputs in the request's own shape; views on the batch's outputs if that was larger."""
    queue_ns: int
    compute_ns: int
    """The whole batch's time."""
    batch: int
    """How many sequences ran together."""


Sizes = Mapping[str, int]
"""By letter, those of the axes that vary, but for B."""


def sizes_of(feeds: Arrays, signature: Signature) -> Sizes:
    """Return the sizes of the letters in a request."""
    return {letter: feeds[name].shape[axis] for letter, (name, axis) in signature.measures.items()}


def asked_tokens(feeds: Arrays, signature: Signature) -> int:
    """Return how many tokens are as many bytes as what a request asks of each of its sequences."""
    sizes = sizes_of(feeds, signature)
    asked = sum([signature.asked_bytes(letter) * sizes[letter] for letter in signature.optional])
    return asked // signature.token_bytes


def measure(feeds: Arrays, signature: Signature) -> tuple[Size, int]:
    """Return the size of a request, what it asks counted as tokens, too, and its tokens without padding."""
    asked = signature.optional
    rows, longest = feeds[signature.primary.name].shape[:2]
    if len(signature.measures) > 1:
        sizes = sizes_of(feeds, signature)
        longest = max([size for letter, size in sizes.items() if letter not in asked])
    tokens = real = rows * longest
    if signature.lengths:
        real = empty = 0
        for spec in signature.lengths:
            lengths = feeds[spec.name].tolist()  # for so few numbers, NumPy's sum takes ten times as long
            real += sum(lengths)
            empty += lengths.count(0)
        if signature.packed:  # an empty sequence is computed as one token
            tokens = real + empty
    if asked:
        tokens += rows * asked_tokens(feeds, signature)
    return Size(rows, longest, tokens), real


# ---- Joined ------------------------------------------------------------------------------------


@dataclass(eq=False)
class JointWork:
    """Requests that run together."""

    works: Sequence[Work]
    """At least one."""
    signature: Signature
    """What the graph takes and gives."""
    size: Size
    """That of the run."""

    @cached_property
    def _sizes(self) -> list[Sizes]:
        """The sizes of the letters of each request."""
        return [sizes_of(work.feeds, self.signature) for work in self.works]

    @cached_property
    def _longest(self) -> Sizes:
        """The largest size of each letter."""
        return {letter: max([of[letter] for of in self._sizes]) for letter in self._sizes[0]}

    @property
    def outputs(self) -> Sequence[str]:
        """Every output that any of the requests asks for."""
        return list(dict.fromkeys(name for work in self.works for name in work.outputs))

    def feeds(self) -> Arrays:
        """Concatenate the inputs of all requests, padded with zeros to the longest."""
        works, sizes = self.works, self._sizes
        are_equal = sizes.count(sizes[0]) == len(sizes)
        feeds = {}
        for name in works[0].feeds:
            parts, spec = [work.feeds[name] for work in works], self.signature.inputs[name]
            if (are_equal and not spec.broadcasts) or len({part.shape[1:] for part in parts}) == 1:
                # Where all left an input out, it stays small. A value that was given for a sequence of length
                # 1 holds for its padding, too.
                feeds[name] = np.concatenate(parts)
            else:
                feeds[name] = self._pad(parts, spec)
        return feeds

    def _pad(self, parts: Sequence[NDArray[Any]], spec: TensorSpec) -> NDArray[Any]:
        """Join inputs of different lengths, or some of which were left out and have size 1."""
        whole, row = np.zeros(spec.at({**self._longest, "B": self.size.rows}), parts[0].dtype), 0
        for part, own in zip(parts, self._sizes, strict=True):
            spec.cut(whole[row : (row := row + len(part))], own)[:] = part
        return whole

    def split(self, outputs: Arrays) -> list[Arrays]:
        """Return the outputs of each request, in its own shape. They are views; nothing is copied."""
        specs = self.signature.outputs
        parts: list[Arrays] = []
        row = 0
        for work, own in zip(self.works, self._sizes, strict=True):
            rows = slice(row, row := row + work.size.rows)
            part = {name: outputs[name][rows] for name in work.outputs}
            if own != self._longest:
                part = {name: specs[name].cut(array, own) for name, array in part.items()}
            parts.append(part)
        return parts

    def asked_bytes(self) -> int:
        """Return the bytes of what the requests ask of their sequences, padding included."""
        signature = self.signature
        asked = [signature.asked_bytes(letter) * self._longest[letter] for letter in signature.optional]
        return self.size.rows * sum(asked)

    def computed_tokens(self) -> int:
        """Return how many tokens layers compute: those of the run's size, without what is asked."""
        signature, size = self.signature, self.size
        if not signature.packed and len(signature.lengths) > 1:
            return size.rows * sum([self._longest[str(spec.fill)] for spec in signature.lengths])
        if not signature.optional:
            return size.tokens
        return size.tokens - sum(
            [work.size.rows * asked_tokens(work.feeds, signature) for work in self.works]
        )


# ---- In pieces ---------------------------------------------------------------------------------


class SplitReply:
    """The reply to a request that runs in pieces. What may be called in an engine's thread says so.

    Args:
        work: The request.
        signature: What the graph takes and gives.
    """

    def __init__(self, work: Work, signature: Signature) -> None:
        self.answer: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda _: self._cancel())
        self._specs = signature.outputs
        self._rows = work.size.rows
        self.sizes = sizes_of(work.feeds, signature)
        """Those of the letters in the whole request."""
        self._outputs: dict[str, NDArray[Any]] = {}
        self._lock = Lock()
        self._pieces: list[asyncio.Future[Done]] = []
        self._done: list[Done] = []
        self._dropped = False

    def add(self, piece: "asyncio.Future[Done]") -> None:
        """Wait for the answer to a piece, too. Add all before any can end."""
        self._pieces.append(piece)
        piece.add_done_callback(self._take)

    def drops(self) -> bool:
        """Return whether a piece that is dropped drops the request: the first, unless that has ended."""
        first = not self._dropped
        self._dropped = True
        return first

    def write(self, piece: "Piece", outputs: Arrays) -> None:
        """Put the outputs of a piece where they belong. In an engine's thread."""
        for name, array in outputs.items():
            spec = self._specs[name]
            with self._lock:
                if (whole := self._outputs.get(name)) is None:  # zeros, as in all padding
                    shape = spec.at({**self.sizes, "B": self._rows})
                    whole = self._outputs[name] = np.zeros(shape, array.dtype)
            own = whole if piece.sizes == self.sizes else spec.cut(whole, piece.sizes)
            own[piece.rows] = array

    def _take(self, piece: "asyncio.Future[Done]") -> None:
        error = None if piece.cancelled() else piece.exception()  # read also of those after the first
        if self.answer.done():
            return
        if error:
            self._dropped = True
            self.answer.set_exception(error)
            return
        self._done.append(piece.result())
        if len(self._done) == len(self._pieces):
            begun, ended, most = math.inf, 0, 0
            for done in self._done:
                begun = min(begun, done.queue_ns)
                ended = max(ended, done.queue_ns + done.compute_ns)
                most = max(most, done.batch)
            self.answer.set_result(
                Done(outputs=self._outputs, queue_ns=int(begun), compute_ns=ended - int(begun), batch=most)
            )

    def _cancel(self) -> None:
        for piece in self._pieces:
            piece.cancel()


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Some sequences of a request."""

    reply: SplitReply
    """Where their outputs belong."""
    rows: Sequence[int]
    """Which they are."""
    work: Work
    """They, as a request."""
    sizes: Sizes
    """The sizes of the letters in it."""


def split_request(work: Work, signature: Signature, dispatch: Dispatch) -> list[Piece]:
    """Cut a request into pieces, where that is sooner; else return none."""
    if not signature.packed or work.size.rows == 1 or not signature.marked.isdisjoint(work.outputs):
        return []
    lengths = [np.maximum(1, work.feeds[spec.name]).tolist() for spec in signature.lengths]
    asked = asked_tokens(work.feeds, signature) if signature.optional else 0
    sequences = [Size(1, max(own), sum(own) + asked) for own in zip(*lengths, strict=True)]
    order = np.argsort([-size.longest for size in sequences], kind="stable").tolist()
    batches = dispatch.pieces([sequences[row] for row in order])
    if len(batches) == 1:
        return []
    reply = SplitReply(work, signature)
    return [_piece(reply, work, [order[place] for place in batch], signature) for batch in batches]


def _piece(reply: SplitReply, work: Work, rows: list[int], signature: Signature) -> Piece:
    """Take sequences of a request, without the padding that none of them needs."""
    sizes = dict(reply.sizes)
    for spec in signature.lengths:
        sizes[str(spec.fill)] = max(1, int(work.feeds[spec.name][rows].max()))
    feeds = {name: array[rows] for name, array in work.feeds.items()}
    if sizes != reply.sizes:  # an input that was left out has size 1 there
        feeds = {
            name: np.ascontiguousarray(signature.inputs[name].cut(array, sizes))
            for name, array in feeds.items()
        }
    size, real = measure(feeds, signature)
    own = replace(work, feeds=feeds, size=size, real_tokens=real)
    return Piece(reply=reply, rows=rows, work=own, sizes=sizes)
