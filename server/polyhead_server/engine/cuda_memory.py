"""CUDA's memory, through the runtime library that onnxruntime's CUDA provider itself uses.

onnxruntime's Python package has neither page-locked memory nor copies that release the interpreter's lock.
"""

import ctypes
import sys
import weakref
from functools import cache

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_server.engine.memory import Buffer, Bytes
from polyhead_server.errors import DeviceError

_TO_DEVICE, _TO_HOST = 1, 2
_RELAXED = 2
_PORTABLE = 1
"""Page-locked for every device of the process, not for the current one only."""


class CudaMemory:
    """The memory of one card.

    Args:
        card: Its number, among those that CUDA_VISIBLE_DEVICES leaves.
    """

    def __init__(self, card: int = 0) -> None:
        self.device = ("cuda", card)
        self._runtime = _runtime()

    def allocate(self, size: int) -> Buffer:
        """Takes memory of the card."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        buffer = Buffer(address.value or 0, size, None)
        self._release_with(buffer, "cudaFree", address)
        return buffer

    def allocate_host(self, size: int) -> Bytes:
        """Takes page-locked memory."""
        address = ctypes.c_void_p()
        self._call("cudaHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE))
        content = (ctypes.c_uint8 * size).from_address(address.value or 0)
        block: Bytes = np.frombuffer(memoryview(content), np.uint8)
        self._release_with(content, "cudaFreeHost", address)
        return block

    def upload(self, array: NDArray[np.generic], address: int) -> None:
        """Copies to the card. Returns when it is there."""
        self._copy(address, array.ctypes.data, array.nbytes, _TO_DEVICE)
        # From ordinary memory, cudaMemcpy may return when all is staged but not yet on the card, and the
        # stream that onnxruntime computes on does not wait for the one that copies.
        self.check()

    def download(self, address: int, array: NDArray[np.generic]) -> None:
        """Copies from the card."""
        self._copy(array.ctypes.data, address, array.nbytes, _TO_HOST)

    def check(self) -> None:
        """Waits for the copies of this process to the card; reports an error that it has been left with."""
        self._call("cudaStreamSynchronize", ctypes.c_void_p(None))

    def _copy(self, to: int, start: int, size: int, kind: int) -> None:
        self._call(
            "cudaMemcpy",
            ctypes.c_void_p(to),
            ctypes.c_void_p(start),
            ctypes.c_size_t(size),
            ctypes.c_int(kind),
        )

    def _release_with(self, thing: object, function: str, address: ctypes.c_void_p) -> None:
        """Has memory freed when what holds it is gone; at the process's end the driver does that."""
        freeing = weakref.finalize(thing, _free, self.device[1], function, address)
        freeing.atexit = False

    def _call(self, function: str, *arguments: object) -> None:
        """Calls the runtime library on this card, which is the current one of each thread for itself.

        Raises:
            RuntimeError: It failed, with the error's number and CUDA's own words, as onnxruntime spells them.
        """
        code = self._runtime.cudaSetDevice(ctypes.c_int(self.device[1]))
        code = code or getattr(self._runtime, function)(*arguments)
        if code:
            self._runtime.cudaGetLastError()  # else the next call, whosever it is, reports it again
            words = self._runtime.cudaGetErrorString(ctypes.c_int(code)).decode()
            raise RuntimeError(f"CUDA failure {code}: {words} ; expr={function}")


@cache
def _runtime() -> ctypes.CDLL:
    """The library; by now `preload_dlls` has loaded it, wherever it is."""
    major = str(getattr(ort, "cuda_version", "") or "13").partition(".")[0]
    name = f"cudart64_{major}.dll" if sys.platform == "win32" else f"libcudart.so.{major}"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(f"missing {name}: pip install 'polyhead[cuda]'") from error
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def _free(card: int, function: str, address: ctypes.c_void_p) -> None:
    """Frees memory, in whatever thread and at whatever time its holder went."""
    runtime = _runtime()
    # While another thread captures a CUDA graph, CUDA lets this one free memory only in this mode.
    mode = ctypes.c_int(_RELAXED)
    runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    runtime.cudaSetDevice(ctypes.c_int(card))
    getattr(runtime, function)(address)
    runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
