"""Host memory is used again when nobody looks at it any more."""

import numpy as np
import pytest

from polyhead_server.engine.host_pool import HostPool


class Counted:
    def __init__(self) -> None:
        self.blocks: list[int] = []

    def __call__(self, size: int) -> np.ndarray:
        self.blocks.append(size)
        return np.empty(size, np.uint8)


def test_an_array_has_its_shape_and_type() -> None:
    array = HostPool(Counted()).take((3, 5, 7), np.float16)

    assert array.shape == (3, 5, 7)
    assert array.dtype == np.float16
    assert array.flags.c_contiguous
    array[:] = 2
    assert array.sum() == 210


def test_memory_is_used_again_once_every_view_is_gone() -> None:
    allocate = Counted()
    pool = HostPool(allocate)
    first = pool.take((100, 100), np.float32)
    corner = first[:3, :3]
    address = first.ctypes.data
    del first
    assert pool.take((100, 100), np.float32).ctypes.data != address  # the corner is still looked at

    del corner
    kept = [pool.take((100, 100), np.float32) for _ in range(2)]

    assert len(allocate.blocks) == 2
    assert address in {array.ctypes.data for array in kept}


def test_sizes_are_few() -> None:
    allocate = Counted()
    pool = HostPool(allocate)
    for size in (1, 4096, 4097, 8000, 8192, 5):
        pool.take((size,), np.uint8)

    assert allocate.blocks == [4096, 8192]
    assert pool.held_bytes == 4096 + 8192


def test_beyond_its_bound_memory_is_ordinary() -> None:
    allocate = Counted()
    pool = HostPool(allocate, most_bytes=8192)
    kept = [pool.take((1000,), np.float32) for _ in range(4)]

    assert allocate.blocks == [4096, 4096]
    for number, array in enumerate(kept):
        array[:] = number
    assert [int(array[0]) for array in kept] == [0, 1, 2, 3]


def test_where_there_is_no_page_locked_memory_it_is_ordinary(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_size: int) -> np.ndarray:
        raise RuntimeError("CUDA failure 2: out of memory")

    pool = HostPool(refuse)

    assert pool.take((3,), np.int32).shape == (3,)
    assert pool.held_bytes == 0
    assert "no page-locked memory" in caplog.text


def test_nothing_is_an_array_too() -> None:
    assert HostPool(Counted()).take((0, 3), np.float32).shape == (0, 3)
