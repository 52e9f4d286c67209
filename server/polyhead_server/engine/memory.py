"""A device's memory, and the host's memory that copies from and to it are fastest with."""

import ctypes
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Buffer:
    """Memory of a device, given back when this object is gone.

    Args:
        address: Where it begins.
        size: Its bytes.
        owner: What holds it.
    """

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.address = address
        self.size = size
        self._owner = owner


class Memory(Protocol):
    """The memory of one device. Safe from several threads at once; copies release the interpreter's lock."""

    @property
    def device(self) -> tuple[str, int]:
        """The device as onnxruntime names it, and its number."""

    def allocate(self, size: int) -> Buffer:
        """Takes memory of the device.

        Raises:
            RuntimeError: There is not so much; in CUDA's words.
        """

    def allocate_host(self, size: int) -> Bytes:
        """Takes memory of the host that the device can copy from and to directly."""

    def upload(self, array: NDArray[np.generic], address: int) -> None:
        """Copies a contiguous array to the device. Returns when it is there."""

    def download(self, address: int, array: NDArray[np.generic]) -> None:
        """Fills a contiguous array from the device."""

    def check(self) -> None:
        """Asks the device how it is.

        Raises:
            RuntimeError: Something that it was given has failed; in CUDA's words.
        """


class HostMemory:
    """The CPU as a device: what runs on a GPU elsewhere can run here."""

    device = ("cpu", 0)

    def allocate(self, size: int) -> Buffer:
        """Takes ordinary memory."""
        block = self.allocate_host(size)
        return Buffer(block.ctypes.data, size, block)

    def allocate_host(self, size: int) -> Bytes:
        """Takes ordinary memory."""
        return np.empty(size, np.uint8)

    def upload(self, array: NDArray[np.generic], address: int) -> None:
        """Copies."""
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, address: int, array: NDArray[np.generic]) -> None:
        """Copies."""
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def check(self) -> None:
        """Nothing fails later."""
