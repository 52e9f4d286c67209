"""Waking exactly when a request is due.

gevent's own timers end in epoll_wait, which counts whole milliseconds: half of one late on average, and that
would be in every latency. A timer of the kernel, read as a file, is exact.
"""

import ctypes
import os
import time
from ctypes import POINTER, Structure, byref, c_int, c_long

import gevent
from gevent import monkey
from gevent.os import nb_read

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_CLOCK_MONOTONIC = 1
_NANOSECONDS = 10**9

# Where there is no such file, a thread sleeps through the last stretch.
_FINE_SECONDS = 0.0025
_sleep = monkey.get_original("time", "sleep")


class _Time(Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


class _Setting(Structure):
    _fields_ = (("interval", _Time), ("first", _Time))


class Alarm:
    """Wakes one greenlet, which lets others run meanwhile."""

    def __init__(self) -> None:
        # Python has these from 3.13 on, in `os`.
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = -1
        if hasattr(libc, "timerfd_create"):
            self._file = int(libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
            self._set = libc.timerfd_settime
            self._set.argtypes = [c_int, c_int, POINTER(_Setting), POINTER(_Setting)]

    def wait_until(self, moment: float) -> None:
        """Return at a moment of `time.perf_counter`, or at once where that has passed."""
        left = moment - time.perf_counter()
        if left <= 0:
            return
        if self._file < 0:
            self._wait_in_thread(moment)
            return
        seconds, nanoseconds = divmod(int(left * _NANOSECONDS) + 1, _NANOSECONDS)
        setting = _Setting(_Time(0, 0), _Time(seconds, nanoseconds))
        self._set(self._file, 0, byref(setting), None)
        nb_read(self._file, 8)

    def close(self) -> None:
        """Close the timer."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _wait_in_thread(self, moment: float) -> None:
        coarse = moment - time.perf_counter() - _FINE_SECONDS
        if coarse > 0:
            gevent.sleep(coarse)
        fine = moment - time.perf_counter()
        if fine > 0:
            gevent.get_hub().threadpool.apply(_sleep, (fine,))
