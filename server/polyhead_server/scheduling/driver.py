"""Who runs the batches: a thread of the engine's own; in tests, whoever keeps the clock."""

from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from polyhead_server.scheduling.queue import Entry


class Lane(Protocol):
    """What has batches to run."""

    def take(self) -> list[Entry]:
        """The next batch, decided now; empty when nothing waits."""

    def run(self, entries: list[Entry]) -> None:
        """Runs a batch and sends its answers on their way."""

    def ended(self) -> None:
        """No batch will be run any more."""


class Driver(Protocol):
    """Runs a lane's batches, one after the other."""

    def start(self, lane: Lane) -> None:
        """Begins. Called once, on the event loop."""

    def wake(self) -> None:
        """Something waits again."""

    def stop(self) -> None:
        """Ends when nothing waits any more, and says so to the lane."""


class EngineThread:
    """A thread that takes the next batch the moment the last one is done.

    The batch is decided then and not before (late binding): planning it takes microseconds, and by then more
    may have come. Nothing between two batches waits for the event loop.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._stopping = False

    def start(self, lane: Lane) -> None:
        """Starts the thread. A daemon: the process's end does not wait for a run that cannot be stopped."""
        Thread(target=self._loop, args=(lane,), name=self._name, daemon=True).start()

    def wake(self) -> None:
        """Rings the bell that the thread waits for."""
        self._bell.put(None)

    def stop(self) -> None:
        """Lets the thread end when the queue is empty."""
        self._stopping = True
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
            lane.ended()
