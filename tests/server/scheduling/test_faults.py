"""Whatever of ours fails, and whenever: every caller gets an answer, and nothing is left in the queue."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.server.scheduling.conftest import Bench, Prices

from polyhead_server.errors import ServingError
from polyhead_server.scheduling import Done


class FaultError(Exception):
    """A bug, where the schedulers call something."""


class Faults:
    """Counts calls, and has one of them fail.

    Args:
        number: Which, from 0.
    """

    def __init__(self, number: float) -> None:
        self.calls = 0
        self._number = number

    def into(self, target: Any, *names: str) -> None:
        """Puts the fault into methods of an object."""
        for name in names:
            setattr(target, name, self._wrap(getattr(target, name)))

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._number + 1:
                raise FaultError
            return function(*arguments, **options)

        return call


async def serve_all(faults: Faults) -> list[Any]:
    """Has a scheduler answer callers of every kind, while it is open and when it is closed."""
    lane, wide = Prices(1e-4, token=1e-4), Prices(1e-4, token=5e-5)
    one = Bench(lane, wide=wide, lanes=2, most_rows=lambda _tokens, _at_once: 4)
    for costs in (lane, wide):
        faults.into(costs, "price", "marginal", "observe")
    faults.into(one.counter, "on_drop", "on_execution")
    faults.into(one.planner, "cut")
    faults.into(one.threads, "wake")
    one.engine.guilty = one.wide.guilty = {5}
    loop = asyncio.get_running_loop()
    answers = [one.submit(number, batch=9, length=4) for number in range(3)]  # two threads are idle meanwhile
    answers += [one.submit(number, length=number) for number in range(3, 12)]
    answers += [one.submit(deadline=loop.time() + 0.005, length=20), one.submit(timeout=0.003, length=20)]
    leaving = one.submit(length=30)
    loop.call_later(0.001, leaving.cancel)
    # On the virtual clock, one who would wait for ever makes the loop raise.
    results = await asyncio.gather(*answers, leaving, return_exceptions=True)
    last = [one.submit(number, batch=9, length=4) for number in range(3)]
    last += [one.submit() for _ in range(3)]
    await one.scheduler.close()
    results += await asyncio.gather(*last, return_exceptions=True)
    assert one.scheduler.queued_tokens == 0
    return results


async def test_whichever_call_fails_every_caller_gets_an_answer() -> None:
    # A fault in what the event loop calls is only logged.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    counting = Faults(float("inf"))
    sound = await serve_all(counting)
    assert sum(isinstance(result, Done) for result in sound) >= 11
    for number in range(counting.calls):
        results = await serve_all(Faults(number))
        assert len(results) == len(sound)
        allowed = Done | ServingError | FaultError | asyncio.CancelledError
        assert all(isinstance(result, allowed) for result in results), results
        # It is raised by `submit` itself, or concerns callers whose answers say so.
        assert sum(isinstance(result, FaultError) for result in results) <= 1
