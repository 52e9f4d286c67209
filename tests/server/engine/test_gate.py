"""Many at once, or one alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

from polyhead_server.engine.gate import Gate


def test_many_pass_together() -> None:
    gate = Gate()
    met = threading.Barrier(3, timeout=30)

    def go_through() -> None:
        with gate.together():
            met.wait()  # all of them are in at once

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(go_through) for _ in range(3)]:
            done.result()


def test_one_alone_waits_for_the_others_and_keeps_later_ones_waiting() -> None:
    gate = Gate()
    order: list[str] = []
    alone, later = threading.Event(), threading.Event()

    def go_alone() -> None:
        alone.set()
        with gate.alone():
            order.append("alone")

    def go_later() -> None:
        later.set()
        with gate.together():
            order.append("later")

    with ThreadPoolExecutor(2) as threads:
        with gate.together():
            first = threads.submit(go_alone)
            alone.wait(30)
            while not gate._waiting:
                pass
            second = threads.submit(go_later)
            later.wait(30)
            order.append("first")
        first.result(30)
        second.result(30)

    assert order == ["first", "alone", "later"]


def test_nobody_is_beside_the_one_alone() -> None:
    gate = Gate()
    inside = 0
    seen: list[int] = []

    def work(number: int) -> None:
        nonlocal inside
        for _ in range(200):
            if number == 0:
                with gate.alone():
                    seen.append(inside)
            else:
                with gate.together():
                    inside += 1
                    inside -= 1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, min(number, 1)) for number in range(2)]:
            done.result()

    assert set(seen) == {0}
