"""The threads that run a model's batches."""

from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Protocol

from polyhead_server.observability.logs import LOGGER
from polyhead_server.scheduling.admission import RunningBatch


class BatchSource(Protocol):
    """What has batches to run: a scheduler."""

    def take(self) -> RunningBatch | None:
        """Return the next batch, chosen now; None if nothing can run. Called by one thread at a time."""

    def run(self, batch: RunningBatch) -> None:
        """Run a batch and send its answers. Called by several threads at once."""

    def ended(self) -> None:
        """Finish: no batch will run any more."""


class EngineThreads:
    """Threads that take the next batch as soon as the last one is done.

    A batch is chosen then and not before (late binding): planning takes microseconds, and until then more
    requests may have come. Nothing between two batches waits for the event loop.

    If the source raises, which is a bug, every thread ends with the batch that it runs.

    Args:
        name: The prefix of the threads' names.
        count: How many batches may run at once.
        initializer: Called by each thread before it takes a batch.
    """

    def __init__(self, name: str, count: int = 1, initializer: Callable[[], object] = lambda: None) -> None:
        self._name = name
        self._count = count
        self._initializer = initializer
        self._alive = count
        self._changed = Condition()  # held from a look at the source to the wait, so that no wake is lost
        self._stopping = False
        self._failed = False

    def start(self, source: BatchSource) -> None:
        """Start the threads, once. They are daemons: a run that cannot be stopped does not hold up the exit.

        Raises:
            RuntimeError: No thread can be started. If only some can, those do.
        """
        for number in range(self._count):
            thread = Thread(target=self._loop, args=(source,), name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not number:
                    raise
                LOGGER.warning("%s runs with %d of %d threads: %s", self._name, number, self._count, error)
                with self._changed:
                    self._alive -= self._count - number
                return

    def wake(self) -> None:
        """Let one of the threads that wait look at the source again."""
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """Let the threads end when the queue is empty."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _loop(self, source: BatchSource) -> None:
        with suppress(Exception):  # what it is will fail batches, too
            self._initializer()
        try:
            while (batch := self._next(source)) is not None:
                source.run(batch)
                del batch  # free the answered requests before waiting
        except Exception:
            self._failed = True
            LOGGER.exception("%s ends: its scheduler failed", self._name)
        finally:
            self.stop()
            with self._changed:
                self._alive -= 1
                last = not self._alive
            if last:
                source.ended()

    def _next(self, source: BatchSource) -> RunningBatch | None:
        """Wait for the next batch; None if there will be none."""
        with self._changed:
            while not self._failed:
                if (batch := source.take()) is not None or self._stopping:
                    return batch
                self._changed.wait()
        return None
