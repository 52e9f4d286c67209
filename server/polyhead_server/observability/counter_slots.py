"""The slots of a counter page, a row of 64-bit integers. All times are in nanoseconds.

Light to import, for the supervisor.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from grpc import StatusCode

from polyhead_server.observability.observer import Drop

_SECONDS = (
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_EXACT_BATCHES = 256


class _Slots:
    """Allocate slots, one after the other."""

    size = 0

    def take(self, count: int = 1) -> int:
        first = self.size
        self.size += count
        return first


@dataclass(frozen=True)
class Histogram:
    """Locate a histogram on a page.

    There is a count for each bound, of the values between the bound before and this one; a count of larger
    values; and the sum.
    """

    first: int
    bounds: Sequence[int]

    @property
    def sum(self) -> int:
        """The slot of the sum."""
        return self.first + len(self.bounds) + 1

    def count(self, values: Sequence[int]) -> int:
        """Return the number of values counted on a page."""
        return sum(values[self.first : self.sum])


_slots = _Slots()


def _times() -> Histogram:
    bounds = tuple(round(seconds * 1e9) for seconds in _SECONDS)
    return Histogram(_slots.take(len(bounds) + 2), bounds)


# ---- Requests ----------------------------------------------------------------------------------

# Of answered requests, except where a comment says otherwise.
REQUEST = _times()
"""From a request's bytes to its reply's."""
PARSE = _times()
TOKENISE = _times()
QUEUE = _times()
COMPUTE = _times()
"""The run that a request was part of."""
SERIALISE = _times()
INPUT_NS = _slots.take()
"""From a request's bytes to arrays, summed over requests."""
FAILED = _slots.take()
FAILED_NS = _slots.take()
SEQUENCES = _slots.take()
LAST_INFERENCE_MS = _slots.take()
"""Since the epoch."""
GRPC, HTTP = "grpc", "http"
CODE = {protocol: {code.name: _slots.take() for code in StatusCode} for protocol in (GRPC, HTTP)}
"""All requests, by protocol and gRPC status."""

# ---- Runs of the engine ------------------------------------------------------------------------

_powers = tuple(2**power for power in range(11))
BATCH = Histogram(_slots.take(len(_powers) + 2), _powers)
"""Sequences in each run."""
TOKENS = _slots.take()
PADDED_TOKENS = _slots.take()
BATCH_ROWS = {
    size: _slots.take(4) for size in (*range(1, _EXACT_BATCHES + 1), *(2**power for power in range(9, 32)))
}
"""By size of the batch, the first of four slots: the runs, and the times of their input, compute and output.

Each size up to 256 has slots of its own; larger sizes share those of the next power of two.
"""

# ---- Dropped work ------------------------------------------------------------------------------

DROP = {reason: _slots.take() for reason in Drop}
"""Work that ended without a result, by the reason."""

# ---- Workers -----------------------------------------------------------------------------------

RESTARTS = _slots.take()
"""How often the worker has been replaced."""

# ---- Gauges: cleared when their process has ended ----------------------------------------------

READY = _slots.take()
IN_FLIGHT = _slots.take()
QUEUED_TOKENS = _slots.take()
HELD_BYTES = _slots.take()
SERVING = _slots.take()
"""Whether the worker is ready, whichever of its models are."""
PROCESS = _slots.take()
"""The worker's process."""
GAUGES = (READY, IN_FLIGHT, QUEUED_TOKENS, HELD_BYTES, SERVING, PROCESS)
_PROVIDER_SLOTS = 8
PROVIDER = slice(_first := _slots.take(_PROVIDER_SLOTS), _first + _PROVIDER_SLOTS)
"""The execution provider's name, as `encode_provider` writes it."""

SLOTS = _slots.size
MAXIMA = (LAST_INFERENCE_MS,)
"""Slots in which the largest value of all workers counts. Names are not added up either; all others are."""


def encode_provider(name: str) -> memoryview:
    """Return the slots at `PROVIDER` for a provider's name, which is cut if it is too long for them."""
    size = 8 * _PROVIDER_SLOTS
    return memoryview(name.encode()[:size].ljust(size, b"\0")).cast("q")


def decode_provider(values: Sequence[int]) -> str:
    """Return the name of a page's provider, or nothing if it has none yet."""
    return array("q", values[PROVIDER]).tobytes().rstrip(b"\0").decode(errors="replace")


def batch_row(batch: int) -> int:
    """Return the first slot for runs of one batch size."""
    return BATCH_ROWS[batch if batch <= _EXACT_BATCHES else 1 << (batch - 1).bit_length()]
