"""Large blocks are the system's again once they are free. Each case has a process: it is for good."""

import os
import subprocess
import sys

import pytest

LOOK = """
import ctypes, sys
from polyhead_server.allocator import give_memory_back

class Memory(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Memory
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
print(give_memory_back())
libc.free(libc.malloc(30 << 20))  # after which glibc by itself keeps blocks of this size
before = libc.mallinfo2().hblks
libc.malloc(10 << 20)
print(libc.mallinfo2().hblks - before)
"""


def look(**environment: str) -> list[str]:
    if not sys.platform.startswith("linux") or not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("the C library is not glibc")
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_blocks_stay_mappings_of_their_own() -> None:
    assert look() == ["True", "1"]


def test_what_the_environment_says_is_left() -> None:
    assert look(MALLOC_TRIM_THRESHOLD_="1000000") == ["False", "1"]
    assert look(GLIBC_TUNABLES="glibc.malloc.mmap_threshold=100000000") == ["False", "0"]
