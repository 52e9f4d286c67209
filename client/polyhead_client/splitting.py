"""Split a batch into several requests, and join their results.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_client.batch import Batch, Texts, lengths_of
from polyhead_client.errors import PolyheadError, Unavailable
from polyhead_client.models import ModelInfo
from polyhead_client.reply import Results
from polyhead_client.request import reply_bytes
from polyhead_client.requested import RequestedOutputs
from polyhead_proto.names import LENGTHS, TOKENS

MAX_IN_FLIGHT = 4
"""The requests of one `encode` in flight: enough to keep a server busy, few enough for its queue."""


def plan(info: ModelInfo, batch: Batch, requested: RequestedOutputs) -> list[slice]:
    """Split a batch into parts that fit into a request each, in order.

    Only the server knows how many tokens texts have; a part that it rejects as too large is halved later.
    """
    size = batch.size
    if set(map(type, batch.fields)) == {Texts}:
        most = info.max_batch_size or size
        return [slice(start, min(start + most, size)) for start in range(0, size, most)]
    if size == 1:
        return [slice(0, 1)]
    parts = list(_split(info, batch, requested, largest_reply=None))
    if len(parts) == 1:
        return parts
    # Several are in flight at once, so none may be as large as a streamed reply.
    return list(_split(info, batch, requested, largest_reply=info.max_reply_bytes))


def halves(part: slice) -> list[slice]:
    """Split a part of at least two sequences in the middle."""
    middle = (part.start + part.stop) // 2
    return [slice(part.start, middle), slice(middle, part.stop)]


class _Extent(NamedTuple):
    """The sequences of a request, and what the longest of them take."""

    size: int
    tokens: int
    memory: int
    row_bytes: int

    def joined(self, other: "_Extent") -> "_Extent":
        longest = (max(pair) for pair in zip(self[1:], other[1:], strict=True))
        return _Extent(self.size + other.size, *longest)


def _split(
    info: ModelInfo, batch: Batch, requested: RequestedOutputs, *, largest_reply: int | None
) -> Iterator[slice]:
    counts = [0] * batch.size if batch.lengths is None else lengths_of(batch.fields[0].rows)
    memory_counts, row_bytes = batch.memory_row_lengths or [0] * batch.size, batch.bytes_by_row

    def exceeds(part: _Extent) -> bool:
        """Return whether a request with these sequences exceeds a limit."""
        size, tokens, memory, each = part
        reply = 0
        if batch.lengths is not None and largest_reply is not None:
            reply = reply_bytes(requested, size=size, tokens=tokens, memory=memory)
        for value, limit in (
            (size, info.max_batch_size),
            (size * each, info.max_request_bytes),
            (size * max(tokens, memory), info.max_request_tokens),
            (reply, largest_reply),
        ):
            if limit is not None and value > limit:
                return True
        return False

    if not exceeds(_Extent(batch.size, max(counts), max(memory_counts), max(row_bytes))):
        yield slice(0, batch.size)
        return
    start, part = 0, _Extent(0, 0, 0, 0)
    for index, each in enumerate(zip(counts, memory_counts, row_bytes, strict=True)):
        longer = part.joined(_Extent(1, *each))
        if part.size and exceeds(longer):
            yield slice(start, index)
            start, longer = index, _Extent(1, *each)
        part = longer
    yield slice(start, batch.size)


@contextmanager
def locate_errors(part: slice) -> Iterator[None]:
    """Make errors name sequences by their position in the whole batch."""
    try:
        yield
    except PolyheadError as error:
        size = part.stop - part.start
        which = f"inputs[{part.start}]" if size == 1 else f"inputs[{part.start}:{part.stop}]"
        if error.fault is not None and error.fault.index:
            row, *rest = error.fault.index
            error.rephrase(replace(error.fault, index=(part.start + row, *rest)))
        error.args = (f"{error} ({which})",)
        raise


class JoinedResults:
    """Joins the results of the parts of a batch, as they arrive. Threads may share it.

    Arrays are allocated once, for the whole batch, so that only the parts in flight are held twice. The
    results of ragged batches are not copied.
    """

    def __init__(self, batch: Batch) -> None:
        self._size = batch.size
        self._lock = Lock()
        self._first: Results | None = None
        self._whole: dict[str, Any] = {}
        self._timings: dict[str, int] = {}

    def put(self, part: slice, results: Results) -> None:
        """Add the results of one part.

        Raises:
            Unavailable: They come from another version of the model than the first.
        """
        pieces = {TOKENS: results.tokens, LENGTHS: results.lengths, **results.arrays}
        with self._lock:
            if self._first is None:  # without its arrays, which are held in _whole
                self._first = replace(results, arrays={}, tokens=None)
            first = self._first
            if results.version != first.version:
                raise Unavailable(
                    f"{first.model} changed from version {first.version} to {results.version} "
                    "while the inputs were encoded, in several requests: encode them again"
                )
            for name, piece in pieces.items():
                if piece is not None and name not in self._whole:
                    self._whole[name] = self._allocate(piece)
            for name, value in results.timings.items():
                self._timings[name] = self._timings.get(name, 0) + value
        for name, piece in pieces.items():
            if piece is not None:
                self._whole[name][part] = piece

    def results(self) -> Results:
        """Return the results of the whole batch."""
        if self._first is None:
            raise RuntimeError("no part has been answered")
        arrays = dict(self._whole)
        tokens, lengths = arrays.pop(TOKENS, None), arrays.pop(LENGTHS)
        return replace(self._first, arrays=arrays, tokens=tokens, lengths=lengths, timings=self._timings)

    def _allocate(self, piece: NDArray[Any] | Sequence[Any]) -> NDArray[Any] | list[Any]:
        if isinstance(piece, np.ndarray):
            return np.empty((self._size, *piece.shape[1:]), piece.dtype)
        return [None] * self._size
