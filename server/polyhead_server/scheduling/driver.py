"""Who runs the batches: threads of the engine's own; in tests, whoever keeps the clock."""

from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol

from polyhead_server.observability.logs import LOGGER
from polyhead_server.scheduling.queue import Entry


class Lane(Protocol):
    """What has batches to run. Called by several threads at once."""

    def take(self) -> list[Entry]:
        """The next batch, decided now; empty when nothing waits."""

    def run(self, entries: list[Entry]) -> None:
        """Runs a batch and sends its answers on their way."""

    def ended(self) -> None:
        """No batch will be run any more."""


class Driver(Protocol):
    """Runs a lane's batches, one or several at a time."""

    def start(self, lane: Lane) -> None:
        """Begins. Called once, on the event loop."""

    def wake(self) -> None:
        """Something waits again. Called once for every time that a driver was told that nothing does."""

    def stop(self) -> None:
        """Ends when nothing waits any more, and says so to the lane."""


class EngineThreads:
    """Threads that take the next batch the moment the last one is done.

    The batch is decided then and not before (late binding): planning it takes microseconds, and by then more
    may have come. Nothing between two batches waits for the event loop.

    Args:
        name: The threads'.
        count: How many batches may run at once.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = name
        self._count = count
        self._alive = count
        self._lock = Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._stopping = False

    def start(self, lane: Lane) -> None:
        """Starts the threads. Daemons: the process's end does not wait for a run that cannot be stopped.

        Raises:
            RuntimeError: None can be started. Where some can, they do.
        """
        for number in range(self._count):
            thread = Thread(target=self._loop, args=(lane,), name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not number:
                    raise
                LOGGER.warning("%s runs with %d of %d threads: %s", self._name, number, self._count, error)
                with self._lock:
                    self._alive -= self._count - number
                return

    def wake(self) -> None:
        """Rings the bell that the threads wait for: one of them hears it."""
        self._bell.put(None)

    def stop(self) -> None:
        """Lets the threads end when the queue is empty."""
        self._stopping = True
        for _ in range(self._count):
            self.wake()

    def _loop(self, lane: Lane) -> None:
        try:
            while True:
                entries = lane.take()
                if entries:
                    lane.run(entries)
                    del entries  # what was answered is not held until something comes
                elif self._stopping:
                    return
                else:
                    self._bell.get()
        finally:
            self.stop()  # after a fault of ours, the others do not go on alone
            with self._lock:
                self._alive -= 1
                last = not self._alive
            if last:
                lane.ended()
