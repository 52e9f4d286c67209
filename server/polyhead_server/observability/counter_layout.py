"""Where each number stands on a page: a page is a row of 64-bit integers, and all times are in nanoseconds.

Light, as all that the process above the workers imports.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = (
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_EXACT_BATCHES = 256


class _Cursor:
    """Hands out places, one after the other."""

    size = 0

    def take(self, count: int = 1) -> int:
        first = self.size
        self.size += count
        return first


@dataclass(frozen=True)
class Histogram:
    """How many values each bound is the first at or above; then how many are above all; then their sum."""

    first: int
    bounds: Sequence[int]

    @property
    def sum(self) -> int:
        """The place of the sum."""
        return self.first + len(self.bounds) + 1

    def count(self, values: Sequence[int]) -> int:
        """How many values a page has counted."""
        return sum(values[self.first : self.sum])


_cursor = _Cursor()


def _times() -> Histogram:
    bounds = tuple(round(seconds * 1e9) for seconds in _SECONDS)
    return Histogram(_cursor.take(len(bounds) + 2), bounds)


# ---- Requests ----------------------------------------------------------------------------------

REQUEST = _times()
"""Answered requests, from their bytes to their reply's."""
PARSE = _times()
TOKENISE = _times()
QUEUE = _times()
COMPUTE = _times()
"""As each request sees it: the run that it was part of."""
SERIALISE = _times()
INPUT_NS = _cursor.take()
"""From an answered request's bytes to arrays; as many as there are answered requests."""
FAILED = _cursor.take()
FAILED_NS = _cursor.take()
SEQUENCES = _cursor.take()
"""Of answered requests."""
LAST_INFERENCE_MS = _cursor.take()
"""Since the epoch."""
_CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED"),
    *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "OUT_OF_RANGE", "DATA_LOSS"),
)
CODE = {code: _cursor.take() for code in _CODES}
"""Requests that ended with each of gRPC's statuses."""

# ---- Runs of the engine ------------------------------------------------------------------------

_powers = tuple(2**power for power in range(11))
BATCH = Histogram(_cursor.take(len(_powers) + 2), _powers)
"""Sequences of each run."""
TOKENS = _cursor.take()
PADDED_TOKENS = _cursor.take()
_batches = _cursor.take(4 * (_EXACT_BATCHES + 32))

# ---- Dropped work ------------------------------------------------------------------------------

DRAINING, LOADING, MEMORY = "draining", "loading", "memory"
_REASONS = (
    *("queue_full", "unreachable", "stopping", "timeout", "expired", "cancelled"),  # the scheduler's
    *(DRAINING, LOADING, MEMORY),
)
DROP = {reason: _cursor.take() for reason in _REASONS}
"""Work that ended without a result, by the reason."""

# ---- How things stand: not counters, and worth nothing once their process has ended --------------

READY = _cursor.take()
IN_FLIGHT = _cursor.take()
QUEUED_TOKENS = _cursor.take()
HELD_BYTES = _cursor.take()
SERVING = _cursor.take()
"""The worker is ready, whatever of its models is."""
GAUGES = (READY, IN_FLIGHT, QUEUED_TOKENS, HELD_BYTES, SERVING)
_PROVIDER_SLOTS = 8
PROVIDER = slice(_first := _cursor.take(_PROVIDER_SLOTS), _first + _PROVIDER_SLOTS)
"""The execution provider's name, as `encode_provider` writes it."""

SLOTS = _cursor.size
MAXIMA = (LAST_INFERENCE_MS,)
"""Pages of several processes add up, but for these: there the largest counts."""


def encode_provider(name: str) -> memoryview:
    """Return what stands at `PROVIDER` for a provider's name, which is cut if it is longer than the place."""
    size = 8 * _PROVIDER_SLOTS
    return memoryview(name.encode()[:size].ljust(size, b"\0")).cast("q")


def decode_provider(values: Sequence[int]) -> str:
    """Return the name of a page's provider, or nothing if it has none yet."""
    return array("q", values[PROVIDER]).tobytes().rstrip(b"\0").decode(errors="replace")


def batch_row(batch: int) -> int:
    """Where the runs of one batch size stand: how many, then nanoseconds of input, compute and output.

    Each size up to 256 has a place of its own; above, each power of two takes those below it.
    """
    row = batch - 1 if batch <= _EXACT_BATCHES else _EXACT_BATCHES + (batch - 1).bit_length() - 9
    return _batches + 4 * row


BATCH_ROWS = {
    size: batch_row(size) for size in (*range(1, _EXACT_BATCHES + 1), *(2**power for power in range(9, 32)))
}
"""The place of every batch size that has one."""
