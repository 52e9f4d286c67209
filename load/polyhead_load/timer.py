"""Wake exactly when a request is due.

gevent's own timers end in epoll_wait, which counts whole milliseconds: half a millisecond late on average,
which would be part of every latency. A timer of the kernel, read as a file, is exact; Linux has one.
"""

import ctypes
import os
import time

import gevent
from gevent.os import nb_read

_CLOCK_MONOTONIC = 1
_NANOSECONDS = 10**9

_TimerSpec = ctypes.c_long * 4
"""Seconds and nanoseconds of the interval, and of the first expiry."""


class PreciseTimer:
    """Let one greenlet wait while others run."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)  # Python has these in `os` from 3.13 on
        self._file = -1
        if hasattr(self._libc, "timerfd_create"):
            self._file = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))

    def wait_until(self, moment: float) -> None:
        """Return at a moment of `time.perf_counter`, or at once where that has passed."""
        left = moment - time.perf_counter()
        if left <= 0:
            return
        if self._file >= 0:
            setting = _TimerSpec(0, 0, *divmod(int(left * _NANOSECONDS) + 1, _NANOSECONDS))
            self._libc.timerfd_settime(self._file, 0, ctypes.byref(setting), None)
            nb_read(self._file, 8)
            return
        gevent.sleep(left)

    def close(self) -> None:
        """Close the timer."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
