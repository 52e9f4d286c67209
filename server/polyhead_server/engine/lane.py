"""A run's way to a device and back: its buffers there, and what is bound to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_server.engine.buckets import Size
from polyhead_server.engine.host_pool import HostPool
from polyhead_server.engine.memory import Buffer, Memory
from polyhead_server.engine.runner import Arrays
from polyhead_server.engine.shapes import DTYPES, shape_of
from polyhead_server.signature import Signature


class Lane:
    """One run at a time. Its buffers grow to the largest run that it has had.

    Args:
        session: The session.
        signature: What it takes and gives.
        memory: The device's.
        pool: Where arrays on the host are taken from.
    """

    def __init__(
        self, session: ort.InferenceSession, signature: Signature, memory: Memory, pool: HostPool
    ) -> None:
        self._session = session
        self._memory = memory
        self._pool = pool
        self._inputs = signature.manifest.inputs
        self._outputs = {tensor.name: tensor for tensor in signature.manifest.graphs[signature.graph].outputs}
        self._buffers: dict[str, Buffer] = {}
        self._binding = session.io_binding()

    def upload(self, feeds: Arrays, size: Size) -> None:
        """Copies the inputs to the device, padded with zeros to the size (B, T), and binds them there."""
        for tensor in self._inputs:
            given = feeds[tensor.name]
            staged = self._pool.take(shape_of(tensor, *size), given.dtype)
            _pad(given, staged)
            buffer = self._buffer(tensor.name, staged.nbytes)
            self._memory.upload(staged, buffer.address)
            self._binding.bind_input(
                tensor.name, *self._memory.device, staged.dtype.type, staged.shape, buffer.address
            )

    def bind(self, outputs: Sequence[str], size: Size) -> None:
        """Binds these outputs, and no others, to the device."""
        self._binding.clear_binding_outputs()
        for name in outputs:
            shape, dtype = self._form(name, size)
            buffer = self._buffer(name, int(np.prod(shape)) * np.dtype(dtype).itemsize)
            self._binding.bind_output(name, *self._memory.device, dtype, shape, buffer.address)

    def compute(self, options: ort.RunOptions) -> None:
        """Runs, and returns when the device is done."""
        self._session.run_with_iobinding(self._binding, options)

    def download(self, outputs: Sequence[str], size: Size, batch: int, tokens: int) -> Arrays:
        """Copies outputs from the device, and cuts them to (B, T)."""
        values = {}
        for name in outputs:
            shape, dtype = self._form(name, size)
            array = self._pool.take((batch, *shape[1:]), dtype)
            self._memory.download(self._buffers[name].address, array)
            values[name] = array[_corner(shape_of(self._outputs[name], batch, tokens))]
        return values

    def bytes(self, size: Size) -> int:
        """What its buffers take for a run of (B, T) with every output."""
        tensors = [*self._inputs, *self._outputs.values()]
        return sum(
            int(np.prod(shape_of(tensor, *size))) * np.dtype(DTYPES[tensor.datatype]).itemsize
            for tensor in tensors
        )

    @property
    def held_bytes(self) -> int:
        """What its buffers take now."""
        return sum(buffer.size for buffer in self._buffers.values())

    def drop(self) -> None:
        """Gives the device its memory back."""
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        self._buffers.clear()

    def _form(self, name: str, size: Size) -> tuple[tuple[int, ...], type[np.generic]]:
        tensor = self._outputs[name]
        return shape_of(tensor, *size), DTYPES[tensor.datatype]

    def _buffer(self, name: str, size: int) -> Buffer:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            self._buffers.pop(name, None)  # before a larger one is taken
            buffer = self._buffers[name] = self._memory.allocate(size)
        return buffer


def _pad(given: NDArray[Any], staged: NDArray[Any]) -> None:
    """Fills an array with a smaller one and zeros behind it."""
    if given.shape != staged.shape:
        staged.fill(0)
    staged[_corner(given.shape)] = given


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)
