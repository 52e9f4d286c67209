"""Large blocks are the system's again once they are free; what stays is in huge pages.

Each case has a process: it is for good.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import ctypes, sys
from polyhead_server.engine.allocator import give_memory_back

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


HOLES = """
import asyncio, ctypes, resource
from polyhead_server.engine.allocator import give_memory_back, keep_trim

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def make_holes():
    blocks = [libc.malloc(8 << 10) for _ in range(8000)]  # 62 MiB
    for block in blocks:
        libc.memset(block, 1, 8 << 10)
    for number, block in enumerate(blocks):
        if number % 100:
            libc.free(block)
    return resident()

give_memory_back()
full = make_holes()
async def wait():
    trimming = asyncio.ensure_future(keep_trim(every=0.01))
    while full - resident() <= 40 and not trimming.done():
        await asyncio.sleep(0.01)
    trimming.cancel()
asyncio.run(asyncio.wait_for(wait(), 120))
print(full - resident() > 40)
"""


HUGE = """
import mmap
from polyhead_server.engine.allocator import use_huge_pages

def resident(name):
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024

full, sparse = (mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2))
data = bytes(range(256)) * (1 << 18)
full.write(data)
for page in range(0, 64 << 20, 8192):
    sparse[page] = 7
before, huge = resident("Rss"), resident("AnonHugePages")
use_huge_pages()
print(resident("AnonHugePages") - huge >= 2, resident("Rss") - before < 16)
print(full[:] == data, sparse[8192], sparse[4096])
"""


def look(script: str = LOOK, **environment: str) -> list[str]:
    if not sys.platform.startswith("linux") or not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("the C library is not glibc")
    done = subprocess.run(
        [sys.executable, "-c", script],
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


def test_holes_between_small_blocks_are_given_back() -> None:
    assert look(HOLES) == ["True"]


def test_what_fills_huge_pages_gets_them_and_what_does_not_does_not_grow() -> None:
    is_there, grew_not, *same = look(HUGE)

    assert (grew_not, same) == ("True", ["True", "7", "0"])
    kernel = tuple(map(int, os.uname().release.split(".")[:2]))
    if kernel >= (6, 1) and Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert is_there == "True"


def test_holes_are_left_where_the_environment_sets_the_allocator_up() -> None:
    assert look(HOLES, MALLOC_TRIM_THRESHOLD_="100000000") == ["False"]
