"""One onnxruntime session of one graph: arrays in, arrays out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from polyhead_server.arena import Arena
from polyhead_server.devices import CPU, Device, check_provider
from polyhead_server.errors import EngineError, RepositoryError, TooLargeError
from polyhead_server.logs import LOGGER
from polyhead_server.signature import LENGTHS, Signature

Arrays = Mapping[str, NDArray[Any]]

_SHRINK = ("memory.enable_memory_arena_shrinkage", "cpu:0")
_OUT_OF_MEMORY = ("bad allocation", "bad_alloc", "out of memory", "Failed to allocate")
_DTYPES = {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32}


class Runner(Protocol):
    """What computes: an engine, or a test's stand-in."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Runs once; called from a worker thread."""

    def stop(self) -> None:
        """Ends the runs in progress, which then fail, and lets no other begin."""


class Engine:
    """A session that is loaded, checked and warm.

    Args:
        path: The graph's file; its weights lie beside it.
        signature: What it must take and give.
        device: Where it runs.
        threads: Threads of one run on the CPU.

    Raises:
        RepositoryError: The graph does not load, or is not what the signature says.
        DeviceError: It does not run where it must.
    """

    def __init__(self, path: Path, *, signature: Signature, device: Device, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin while they wait take the processor from the sessions beside them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        if not device.packed:
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            self._session = ort.InferenceSession(str(path), options, providers=device.providers)
        except Exception as error:
            raise RepositoryError(f"{path.name} cannot be loaded by onnxruntime {ort.__version__}") from error
        self._session.disable_fallback()
        check_provider(self._session.get_providers(), device)
        self.provider: str = self._session.get_providers()[0]
        self.packed = device.packed
        self._signature = signature
        self.outputs = [tensor.name for tensor in signature.manifest.graphs[signature.graph].outputs]
        self._running: set[Any] = set()
        self._arena = Arena()
        self._stopped = False
        self._lock = Lock()
        self._check_names(path.name)
        self._warm_up(path.name)

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Runs the graph. Releases the interpreter's lock; safe from several threads at once.

        Args:
            feeds: Every input by its name.
            outputs: The outputs to return. The others are computed, too, but not copied.

        Raises:
            TooLargeError: There was not enough memory.
            EngineError: Anything else went wrong.
        """
        options = ort.RunOptions()
        batch, tokens = feeds[self._signature.primary].shape[:2]
        taken = self._signature.working_bytes(batch, tokens)
        with self._lock:
            if self._stopped:
                raise EngineError(f"{self._signature.name} is stopped")
            if self._arena.begin(taken) and self.provider == CPU:
                options.add_run_config_entry(*_SHRINK)
            self._running.add(options)
        try:
            values = self._session.run(list(outputs), dict(feeds), options)
        except Exception as error:
            if isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY):
                raise TooLargeError(
                    "the request needs more memory than there is: send fewer or shorter sequences"
                ) from error
            raise EngineError(f"{self._signature.name} failed: {error}") from error
        finally:
            with self._lock:
                self._arena.end(taken)
                self._running.discard(options)
        return dict(zip(outputs, values, strict=True))

    def example(self, batch: int, tokens: int) -> dict[str, NDArray[Any]]:
        """Inputs of (B, T): zeros, nothing masked, no padding."""
        feeds: dict[str, NDArray[Any]] = {}
        for tensor in self._signature.manifest.inputs:
            open_sizes = iter([batch, tokens, tokens])
            shape = [next(open_sizes) if size == -1 else size for size in tensor.shape]
            feeds[tensor.name] = np.full(shape, tensor.datatype == "BOOL", _DTYPES[tensor.datatype])
        feeds[LENGTHS] = np.full_like(feeds[LENGTHS], tokens)
        return feeds

    def shrink(self) -> None:
        """Has the next run give back the memory that those before it took."""
        with self._lock:
            self._arena.forget()

    def stop(self) -> None:
        """Ends the runs in progress at their next operator, and lets no other begin: all raise."""
        with self._lock:
            self._stopped = True
            for options in self._running:
                options.terminate = True

    def _check_names(self, file: str) -> None:
        graph = self._signature.manifest.graphs[self._signature.graph]
        for what, values, tensors in (
            ("inputs", self._session.get_inputs(), self._signature.manifest.inputs),
            ("outputs", self._session.get_outputs(), graph.outputs),
        ):
            are, must = {value.name for value in values}, {tensor.name for tensor in tensors}
            if are != must:
                raise RepositoryError(
                    f"{file}: the session's {what} must be {sorted(must)}, were {sorted(are)}"
                )

    def _warm_up(self, file: str) -> None:
        """Runs once on zeros, and compares what comes out with what the manifest says."""
        manifest = self._signature.manifest
        batch, tokens = 2, min(8, self._signature.max_tokens or 8)
        wanted = manifest.graphs[self._signature.graph].outputs
        try:
            values = self.run(self.example(batch, tokens), self.outputs)
        except (EngineError, TooLargeError) as error:
            LOGGER.debug("warm-up of %s failed", self._signature.name, exc_info=True)
            raise RepositoryError(f"{file} fails on its first run") from error
        for tensor in wanted:
            value = values[tensor.name]
            open_sizes = iter([batch, tokens, tokens])
            shape = [next(open_sizes) if size == -1 else size for size in tensor.shape]
            if list(value.shape) != shape or value.dtype != _DTYPES[tensor.datatype]:
                raise RepositoryError(
                    f"{file}: {tensor.name} must be {tensor.datatype} {shape} at B={batch}, T={tokens}, "
                    f"was {value.dtype} {list(value.shape)}"
                )
