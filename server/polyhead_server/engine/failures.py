"""Translate errors of onnxruntime and CUDA: out of memory, a lost device, or anything else."""

import re
from collections.abc import Callable

import numpy as np
import onnxruntime as ort

from polyhead_server.engine.device import Device
from polyhead_server.errors import DeviceLostError, EngineError, ServingError, TooLargeError

_OUT_OF_MEMORY = (
    "bad allocation",
    "bad_alloc",
    "out of memory",
    "Failed to allocate",
    "is smaller than requested bytes",  # the limit of the device's arena
    "STATUS_ALLOC_FAILED",  # cuBLAS and cuDNN
)
_LOST = (
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "uncorrectable ECC",
    "GPU is lost",
    "fallen off the bus",
)
_LOST_CODES = frozenset({3, 4, 46, 100, 201, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 802, 999})
"""CUDA's error codes after which a process cannot use the device any more.

They are about the device or its driver (3, 4, 46, 100, 802), its memory (214, 220, 226), its context (201,
709) or a kernel (the others).
"""


def translate(error: Exception, name: str, check: Callable[[], None] = lambda: None) -> ServingError:
    """Return the error that callers get for a failed run.

    Args:
        error: What the run raised.
        name: The model's name.
        check: Raises what the device itself reports.
    """
    if _is_lost(error, check):
        return DeviceLostError("the device failed: try again, the server restarts", retry_after_ms=1000)
    if is_out_of_memory(error):
        return TooLargeError("the request needs more memory than there is: send fewer or shorter sequences")
    return EngineError(f"{name} failed: {error}")


def ask_device(device: Device) -> None:
    """Copy a number to a GPU and back.

    Raises:
        RuntimeError: The GPU cannot be used any more; the message is CUDA's.
    """
    if not device.host_memory:
        ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), device.name, device.number).numpy()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the host ran out of memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


def _is_lost(error: Exception, check: Callable[[], None]) -> bool:
    """Return whether this process cannot use the device any more.

    Its libraries say less than the device: after an illegal access, cuBLAS only reports
    CUBLAS_STATUS_EXECUTION_FAILED.
    """
    if _says_lost(str(error)):
        return True
    try:
        check()
    except Exception as reported:
        return _says_lost(str(reported))
    return False


def _says_lost(text: str) -> bool:
    codes = (int(code) for code in re.findall(r"CUDA (?:failure|error) (\d+)", text))
    return any(words in text for words in _LOST) or any(code in _LOST_CODES for code in codes)
