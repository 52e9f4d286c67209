"""Run one graph in one session."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyhead_server.engine.arena import Arena
from polyhead_server.engine.device import Device, EngineRun, EngineSession
from polyhead_server.engine.devices import open_graph
from polyhead_server.engine.failures import ask_device, translate
from polyhead_server.errors import DeviceLostError, EngineError, RepositoryError, TooLargeError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.signature import Signature

Arrays = Mapping[str, NDArray[Any]]


class Runner(Protocol):
    """What the scheduler runs batches with: an engine, or a fake in tests."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run once. Called from a worker thread."""

    def stop(self) -> None:
        """End the runs in progress, which then fail, and let no other begin."""

    def close(self) -> None:
        """Stop, and free all memory. No run may be in progress."""


@dataclass(eq=False)
class Engine:
    """A session that is loaded, checked and warmed up.

    Raises:
        RepositoryError: The graph does not load, or is not what the signature says.
        DeviceError: It does not run on the device.
    """

    path: Path
    """The graph's file, beside its weights."""
    signature: Signature
    """Its inputs and outputs."""
    device: Device
    """Where it runs."""
    threads: int
    """Threads of one run on the CPU."""
    lanes: int = 1
    """How many runs go side by side."""
    lost: Callable[[], None] = lambda: None
    """Called, from any thread, when the device is lost to this process."""

    def __post_init__(self) -> None:
        self._session: EngineSession | None = open_graph(
            self.path, self.device, threads=self.threads, lanes=self.lanes
        )
        self._primary = self.signature.primary.name
        optional = self.signature.optional  # where padding would ask for more
        self._sized = {
            letter: measured for letter, measured in self.signature.measures.items() if letter not in optional
        }
        self.outputs = [spec.name for spec in self.signature.results]
        self._running: set[EngineRun] = set()
        self._arena = Arena()
        self._stopped = False
        self._lock = Lock()
        self._can_shrink = True
        try:
            self.warm_up()
            self._try_shrinking()
        except Exception:
            self.close()
            raise

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run the graph. Releases the GIL; safe to call from several threads at once.

        Args:
            feeds: Every input by name.
            outputs: The outputs to return. The others are computed, too, but not copied.

        Raises:
            TooLargeError: There was not enough memory.
            DeviceLostError: The device failed for good.
            EngineError: Anything else went wrong.
        """
        padded, sizes = self._pad(feeds)
        taken = self._working_bytes(padded)
        with self._lock:
            if self._stopped or self._session is None:
                raise EngineError(f"{self.signature.name} is stopped")
            run = self._session()
            shrink = self._arena.begin(taken) and self._can_shrink
            self._running.add(run)
        try:
            values = dict(zip(outputs, run(padded, outputs, shrink=shrink), strict=True))
            return values if padded is feeds else self._trim(values, sizes)
        except Exception as error:
            failure = translate(error, self.signature.name, partial(ask_device, self.device))
            if isinstance(failure, TooLargeError):
                self.shrink()  # the batch is run again in halves
            if isinstance(failure, DeviceLostError):
                LOGGER.error("%s: the device is lost: %s", self.signature.name, error)
                self.lost()
            raise failure from error
        finally:
            with self._lock:
                self._arena.end(taken)
                self._running.discard(run)

    def shrink(self) -> None:
        """Have the next run return the memory that earlier runs took."""
        with self._lock:
            self._arena.forget()

    def close(self) -> None:
        """Stop, and free the session with its device memory. No run may be in progress."""
        self.stop()
        self._session = None

    def stop(self) -> None:
        """End the runs in progress at their next operator, and let no other begin: all raise."""
        with self._lock:
            self._stopped = True
            for run in self._running:
                run.cancel()

    def warm_up(self) -> None:
        """Run once on zeros, and check the outputs against the manifest.

        On a GPU, each thread makes handles of its own in its first run.
        """
        file, batch, tokens = self.path.name, 2, min(8, self.signature.max_tokens or 8)
        try:
            values = self.run(self.signature.example(batch, tokens), self.outputs)
        except (EngineError, TooLargeError, DeviceLostError) as error:
            LOGGER.debug("warm-up of %s failed", self.signature.name, exc_info=True)
            raise RepositoryError(f"{file} fails on its first run") from error
        for spec in self.signature.results:
            value = values[spec.name]
            shape = spec.at(self.signature.example_sizes(batch, tokens))
            if value.shape != shape or value.dtype != spec.dtype:
                raise RepositoryError(
                    f"{file}: {spec.name} must be {spec.datatype} {list(shape)} "
                    f"at B={batch}, T={tokens}, was {value.dtype} {list(value.shape)}"
                )

    def _pad(self, feeds: Arrays) -> tuple[Arrays, Mapping[str, int]]:
        """Pad to the sizes that the device needs (`Device.least_size`, `Device.length_multiple`).

        Returns:
            The inputs, and the sizes by letter that they had: `_trim` takes them.
        """
        signature, device = self.signature, self.device
        sizes: dict[str, int] = {}
        wider: dict[str, int] = {}
        for letter, (name, axis) in self._sized.items():
            sizes[letter] = size = feeds[name].shape[axis]
            multiple = device.length_multiple if letter in signature.sequences else 1
            padded = max(device.least_size, -(-size // multiple) * multiple)
            if letter == signature.length and signature.max_tokens is not None:
                padded = max(size, min(padded, signature.max_tokens))  # the graph takes no more
            wider[letter] = padded
        if wider == sizes:
            return feeds, {}
        whole = dict(feeds)
        for spec in signature.feeds:
            value = feeds[spec.name]
            # A mask that a request left out stays of size 1.
            shape = [
                wider[letter] if size == sizes.get(letter) else size
                for letter, size in zip(spec.axes, value.shape, strict=True)
            ]
            if shape != [*value.shape]:
                whole[spec.name] = np.zeros(shape, value.dtype)
                spec.cut(whole[spec.name], sizes)[:] = value
        return whole, sizes

    def _trim(self, values: Arrays, sizes: Mapping[str, int]) -> Arrays:
        """Cut outputs to the sizes that inputs had."""
        specs = self.signature.outputs
        return {name: specs[name].cut(value, sizes) for name, value in values.items()}

    def _working_bytes(self, feeds: Arrays) -> int:
        signature, measures = self.signature, self.signature.measures
        batch, longest = feeds[self._primary].shape[:2]
        tokens = None
        if signature.packed:
            tokens = 0
            for spec in signature.lengths:
                tokens += sum(feeds[spec.name].tolist())
        if len(measures) == 1:
            return signature.working_bytes(batch, longest, tokens=tokens)
        sizes = {letter: feeds[name].shape[axis] for letter, (name, axis) in measures.items()}
        longest = max([sizes[letter] for letter in signature.sequences])
        return signature.working_bytes(batch, longest, sizes, tokens=tokens)

    def _try_shrinking(self) -> None:
        """Shrink the arena of a GPU once. If onnxruntime has no arena of that name, such runs fail."""
        if self.device.host_memory:
            return
        self.shrink()
        try:
            self.run(self.signature.example(1, 1), self.outputs)
        except EngineError as error:
            LOGGER.warning("%s: memory of large runs is not given back: %s", self.signature.name, error)
            self._can_shrink = False
