"""Run a request of several sequences in pieces, side by side, and put its reply together.

Attention is padded to the longest sequence of a run. So a piece has sequences of like length.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_server.engine.engine import Arrays
from polyhead_server.scheduling.batch import DynamicAxes, Sizes, measure, trim
from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.dispatch import Dispatch
from polyhead_server.scheduling.work import Done, Work


class SplitReply:
    """The reply to a request that runs in pieces. What may be called in an engine's thread says so.

    Args:
        work: The request.
        dynamic: Which axes vary.
    """

    def __init__(self, work: Work, dynamic: DynamicAxes) -> None:
        self.answer: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda _: self._cancel())
        self._dynamic = dynamic
        self._rows = work.size.rows
        (self.sizes,) = dynamic.sizes([work])
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
            axes = self._dynamic.outputs.get(name, ())
            with self._lock:
                if (whole := self._outputs.get(name)) is None:
                    shape = [self._rows, *array.shape[1:]]
                    for axis, letter in axes:
                        shape[axis] = self.sizes[letter]
                    whole = self._outputs[name] = np.zeros(shape, array.dtype)  # as in all padding
            where: tuple[Any, ...] = (piece.rows, *trim(axes, piece.sizes)[1:])
            whole[where] = array

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
            begun = min(done.queue_ns for done in self._done)
            self.answer.set_result(
                Done(
                    outputs=self._outputs,
                    queue_ns=begun,
                    compute_ns=max(done.queue_ns + done.compute_ns for done in self._done) - begun,
                    batch=max(done.batch for done in self._done),
                )
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


def split_request(work: Work, dynamic: DynamicAxes, dispatch: Dispatch) -> list[Piece]:
    """Cut a request into pieces, where that is sooner; else return none."""
    if not dynamic.packed or work.size.rows == 1 or not dynamic.nonzero_in_padding.isdisjoint(work.outputs):
        return []
    lengths = [np.maximum(1, work.feeds[name]).tolist() for name, _ in dynamic.lengths]
    asked = dynamic.asked_tokens(work.feeds)
    sequences = [Size(1, max(own), sum(own) + asked) for own in zip(*lengths, strict=True)]
    order = sorted(range(len(sequences)), key=lambda row: -sequences[row].longest)
    batches = dispatch.pieces([sequences[row] for row in order])
    if len(batches) == 1:
        return []
    reply = SplitReply(work, dynamic)
    return [_piece(reply, work, [order[place] for place in batch], dynamic) for batch in batches]


def _piece(reply: SplitReply, work: Work, rows: list[int], dynamic: DynamicAxes) -> Piece:
    """Take sequences of a request, without the padding that none of them needs."""
    longest = list(reply.sizes)
    for name, letter in dynamic.lengths:
        longest[letter] = max(1, int(work.feeds[name][rows].max()))
    feeds = {}
    for name, array in work.feeds.items():
        where = trim(dynamic.inputs.get(name, ()), longest)  # an input that was left out has size 1 there
        feeds[name] = np.ascontiguousarray(array[rows][where])
    size, real = measure(feeds, dynamic)
    own = replace(work, feeds=feeds, size=size, real_tokens=real)
    return Piece(reply=reply, rows=rows, work=own, sizes=tuple(longest))
