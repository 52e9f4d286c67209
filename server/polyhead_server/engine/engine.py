"""Run one graph in one session."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from numpy.typing import NDArray

from polyhead_server.engine.arena import Arena
from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import open_graph
from polyhead_server.engine.failures import ask_device, translate
from polyhead_server.engine.protocols import EngineRun, EngineSession
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
        self.outputs = [spec.name for spec in self.signature.results]
        self._running: set[EngineRun] = set()
        self._arena = Arena()
        self._stopped = False
        self._lock = Lock()
        try:
            if not self.device.host_memory:
                self.shrink()  # a GPU's arena has a name, so that a wrong one shows at once
            self._warm_up(self.path.name)
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
        taken = self._working_bytes(feeds)
        with self._lock:
            if self._stopped or self._session is None:
                raise EngineError(f"{self.signature.name} is stopped")
            run = self._session()
            shrink = self._arena.begin(taken)
            self._running.add(run)
        try:
            values = run(feeds, outputs, shrink=shrink)
            return dict(zip(outputs, values, strict=True))
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

    def _working_bytes(self, feeds: Arrays) -> int:
        signature, measures = self.signature, self.signature.measures
        batch, longest = feeds[self._primary].shape[:2]
        tokens = None
        if signature.packed:
            tokens = sum([sum(feeds[spec.name].tolist()) for spec in signature.lengths])
        if len(measures) == 1:
            return signature.working_bytes(batch, longest, tokens=tokens)
        sizes = {letter: feeds[name].shape[axis] for letter, (name, axis) in measures.items()}
        longest = max([sizes[letter] for letter in signature.sequences])
        return signature.working_bytes(batch, longest, sizes, tokens=tokens)

    def _warm_up(self, file: str) -> None:
        """Run once on zeros, and check the outputs against the manifest."""
        batch, tokens = 2, min(8, self.signature.max_tokens or 8)
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
