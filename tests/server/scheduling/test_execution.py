"""The threads of an engine: none sleeps while something can run."""

from threading import Event, Thread
from typing import Any

from polyhead_server.scheduling.execution import EngineThreads

BATCH: Any = object()
PATIENCE = 240
"""Seconds to wait for what must happen."""


class LateSource:
    """Has a batch only after its first look, during which `wake` is called."""

    def __init__(self) -> None:
        self.looks = 0
        self.looking, self.waking = Event(), Event()
        self.ran, self.has_ended = Event(), Event()

    def take(self) -> Any:
        self.looks += 1
        if self.looks == 1:
            self.looking.set()
            self.waking.wait(PATIENCE)
            return None
        return BATCH if self.looks == 2 else None

    def run(self, batch: Any) -> None:
        assert batch is BATCH
        self.ran.set()

    def ended(self) -> None:
        self.has_ended.set()


def test_what_came_while_a_thread_was_looking_makes_it_look_again() -> None:
    source = LateSource()
    threads = EngineThreads("engine")
    threads.start(source)

    def wake() -> None:
        source.waking.set()
        threads.wake()

    assert source.looking.wait(PATIENCE)
    waking = Thread(target=wake)
    waking.start()

    assert source.ran.wait(PATIENCE)
    waking.join()
    threads.stop()
    assert source.has_ended.wait(PATIENCE)
