"""CUDA's memory, over a runtime library that has the host's memory for a card's."""

import ctypes
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyhead_server.engine import cuda_memory
from polyhead_server.engine.cuda_memory import CudaMemory
from polyhead_server.engine.failures import translate
from polyhead_server.errors import DeviceError, DeviceLostError, TooLargeError

WORDS = {2: b"out of memory", 700: b"an illegal memory access was encountered"}
INT, SIZE, POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p


class Runtime:
    """The functions of the runtime library, in C's types; each call's device and name are remembered."""

    def __init__(self) -> None:
        self.current = 0
        self.calls: Counter[tuple[str, int]] = Counter()
        self.blocks: dict[int, Any] = {}
        self.fails = 0
        self.modes = [0]
        take = ctypes.CFUNCTYPE(INT, ctypes.POINTER(POINTER), SIZE)(self._take)
        take_host = ctypes.CFUNCTYPE(INT, ctypes.POINTER(POINTER), SIZE, ctypes.c_uint)(self._take_host)
        self.cudaSetDevice = ctypes.CFUNCTYPE(INT, INT)(self._set)
        self.cudaMalloc, self.cudaHostAlloc = take, take_host
        free = ctypes.CFUNCTYPE(INT, POINTER)
        self.cudaFree = free(lambda address: self._free("cudaFree", address))
        self.cudaFreeHost = free(lambda address: self._free("cudaFreeHost", address))
        self.cudaMemcpy = ctypes.CFUNCTYPE(INT, POINTER, POINTER, SIZE, INT)(self._copy)
        self.staged: list[tuple[int, bytes]] = []
        self.cudaStreamSynchronize = ctypes.CFUNCTYPE(INT, POINTER)(self._synchronise)
        self.cudaGetLastError = ctypes.CFUNCTYPE(INT)(lambda: self.fails)
        self.cudaGetErrorString: Callable[[Any], bytes] = lambda code: WORDS[code.value]
        self.cudaThreadExchangeStreamCaptureMode = ctypes.CFUNCTYPE(INT, ctypes.POINTER(INT))(self._exchange)

    def _set(self, card: int) -> int:
        self.current = card
        return 0

    def _take(self, address: Any, size: int, name: str = "cudaMalloc") -> int:
        self.calls[name, self.current] += 1
        if not self.fails:
            block = ctypes.create_string_buffer(size)
            address[0] = ctypes.addressof(block)
            self.blocks[ctypes.addressof(block)] = block
        return self.fails

    def _take_host(self, address: Any, size: int, flags: int) -> int:
        assert flags == 1
        return self._take(address, size, "cudaHostAlloc")

    def _free(self, name: str, address: int) -> int:
        assert self.modes[-1] == 2
        self.calls[name, self.current] += 1
        del self.blocks[address]
        return 0

    def _copy(self, to: int, start: int, size: int, kind: int) -> int:
        self.calls["to device" if kind == 1 else "to host", self.current] += 1
        assert (to if kind == 1 else start) in self.blocks
        if not self.fails and kind == 1 and start not in self.blocks:  # staged, and on its way
            self.staged.append((to, ctypes.string_at(start, size)))
        elif not self.fails:
            ctypes.memmove(to, start, size)
        return self.fails

    def _synchronise(self, stream: int | None) -> int:
        assert not stream
        for to, content in self.staged:
            ctypes.memmove(to, content, len(content))
        self.staged.clear()
        return self.fails

    def _exchange(self, mode: Any) -> int:
        before, after = self.modes[-1], mode[0]
        self.modes.append(after)
        mode[0] = before
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    one = Runtime()
    monkeypatch.setattr(cuda_memory, "_runtime", lambda: one)
    return one


def test_without_the_library_it_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.cuda_version", "99.1", raising=False)
    cuda_memory._runtime.cache_clear()

    with pytest.raises(DeviceError, match=r"missing libcudart\.so\.99: pip install 'polyhead\[cuda\]'"):
        CudaMemory()


def test_what_goes_up_comes_down(runtime: Runtime) -> None:
    memory = CudaMemory(3)
    sent = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    buffer = memory.allocate(sent.nbytes)
    back = np.zeros_like(sent)
    runtime.current = 0  # another thread's
    memory.upload(sent, buffer.address)
    memory.download(buffer.address, back)

    np.testing.assert_array_equal(back, sent)
    assert memory.device == ("cuda", 3)
    assert buffer.size == sent.nbytes
    assert {card for _, card in runtime.calls} == {3}


def test_what_is_uploaded_is_on_the_card_wherever_it_came_from(runtime: Runtime) -> None:
    memory = CudaMemory()
    buffer = memory.allocate(100)
    for sent in (np.full(100, 3, np.uint8), memory.allocate_host(100)):
        sent[:] = len(runtime.blocks)
        memory.upload(sent, buffer.address)

        assert ctypes.string_at(buffer.address, 100) == sent.tobytes()


def test_it_says_what_a_card_was_left_with(runtime: Runtime) -> None:
    memory = CudaMemory()
    memory.check()
    runtime.fails = 700
    with pytest.raises(RuntimeError, match="CUDA failure 700: an illegal memory access"):
        memory.check()


def test_memory_is_freed_when_nobody_holds_it(runtime: Runtime) -> None:
    memory = CudaMemory(1)
    buffer, block = memory.allocate(100), memory.allocate_host(200)
    view = block[10:20]
    view[:] = 7
    del buffer, block
    gc.collect()
    assert len(runtime.blocks) == 1  # what the view looks at
    assert view.sum() == 70

    runtime.current = 0
    del view
    gc.collect()

    assert runtime.blocks == {}
    assert (runtime.calls["cudaFree", 1], runtime.calls["cudaFreeHost", 1]) == (1, 1)
    assert runtime.modes[-1] == 0


@pytest.mark.parametrize(("code", "error"), [(2, TooLargeError), (700, DeviceLostError)])
def test_failures_are_spelt_as_the_engine_reads_them(
    runtime: Runtime, code: int, error: type[Exception]
) -> None:
    memory = CudaMemory()
    runtime.fails = code
    with pytest.raises(RuntimeError, match=f"CUDA failure {code}: ") as caught:
        memory.allocate(10)

    assert isinstance(translate(caught.value, "tiny"), error)
