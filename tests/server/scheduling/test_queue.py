"""The queue between the event loop and the engine's threads."""

import asyncio

import pytest

from polyhead_server.scheduling.costs import Size
from polyhead_server.scheduling.queue import Entry, Queue
from polyhead_server.scheduling.work import Work


@pytest.fixture
def entries() -> list[Entry]:
    loop = asyncio.new_event_loop()
    try:
        return [
            Entry(
                Work(feeds={}, outputs=[], size=Size(1, 8, 8), real_tokens=8),
                loop.create_future(),
                arrived_ns=0,
                seconds=1.0,
                start_by=1.0,
            )
            for _ in range(2)
        ]
    finally:
        loop.close()


def test_a_thread_that_leaves_what_waits_is_woken_for_what_comes_next(entries: list[Entry]) -> None:
    queue = Queue()
    queue.add(entries[:1])
    newest = queue.newest

    assert queue.window(8) == entries[:1]
    assert queue.mark_idle(newest)
    assert queue.add(entries[1:])


def test_what_came_while_a_thread_was_looking_makes_it_look_again(entries: list[Entry]) -> None:
    queue = Queue()
    queue.add(entries[:1])
    newest = queue.newest
    window = queue.window(8)

    assert not queue.add(entries[1:])  # nobody is idle yet, so nobody is woken
    assert window == entries[:1]
    assert not queue.mark_idle(newest)
    assert queue.window(8) == entries
    assert not queue.needs_wake()  # nor counted as idle
