"""Orders to load and unload, followed by all workers, whichever of them a caller has reached.

The worker that gets an order follows it first. Then it writes down what it serves, version by version, and
the others come to exactly that, each while it goes on answering. The caller has the answer when all have.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from polyhead_server.desired import Family
from polyhead_server.errors import NotLoadedError, RequestError, ServerError
from polyhead_server.logs import LOGGER
from polyhead_server.reconciler import Reconciler, Scan
from polyhead_server.workers.agreement import Agreement

_LOOK_SECONDS = 0.1
_WAIT_SECONDS = 0.02
_NOTHING = Family(loaded=True, versions={})


class Orders:
    """Gives orders, and follows those of the others. Lives on the event loop.

    Args:
        agreement: What all of them are to serve.
        reconciler: What serves here.
        late: This worker listens only when it has loaded; until then nobody waits for it.
    """

    def __init__(self, agreement: Agreement, reconciler: Reconciler, *, late: bool) -> None:
        self._agreement = agreement
        self._reconciler = reconciler
        self._number = 0
        """Of what is served here."""
        self._left = False
        self._giving = asyncio.Lock()
        self._changing = asyncio.Lock()
        if not late:
            agreement.join()

    async def begin(self) -> None:
        """Takes part, with what was loaded at the start. Returns when that is what all are to serve."""
        if self._left:
            return
        self._agreement.join()
        async with self._changing:
            await self._come_up()
        # Where the lock is taken an order is on its way, which says what is served, too.
        if not self._giving.locked() and self._agreement.lock():
            try:
                self._tell(None)
            finally:
                self._agreement.unlock()

    async def follow(self) -> None:
        """Follows the others' orders for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._agreement.newest != self._number:
                async with self._changing:
                    await self._come_up()

    def leave(self) -> None:
        """Follows no more: this worker stops."""
        self._left = True
        self._agreement.leave()

    async def load(self, name: str) -> None:
        """Takes over what the repository holds of one family, in all workers.

        Raises:
            UnknownModelError: It holds no such family.
            NotLoadedError: It cannot be loaded here or in another worker; what was served there still is.
        """
        await self._give(name, self._reconciler.load)

    async def unload(self, name: str) -> None:
        """Takes a family out of service in all workers; what they have accepted is finished.

        Raises:
            UnknownModelError: There is no such family.
        """
        await self._give(name, self._reconciler.unload)

    async def _give(self, name: str, act: Callable[[str], Awaitable[None]]) -> None:
        async with self._giving, self._turn():
            refused: RequestError | None = None
            async with self._changing:
                await self._come_up()
                try:
                    await act(name)
                except RequestError as error:  # an older version may have taken its place all the same
                    refused = error
                told = self._tell(name)
            if told:
                await _until(lambda: not self._agreement.behind(self._number))
            if refused is not None:
                raise refused
            if failures := self._agreement.failures(name):
                reasons = "; ".join(f"worker {worker}: {reason}" for worker, reason in failures.items())
                raise NotLoadedError(f"{name} is as ordered, but not in all workers: {reasons}")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Waits until no other worker gives an order."""
        await _until(self._agreement.lock)
        try:
            yield
        finally:
            self._agreement.unlock()

    def _tell(self, ordered: str | None) -> bool:
        """Writes down what is served here of a family, and of those of which nobody has said anything.

        Returns:
            Whether there was anything to tell.
        """
        _, known = self._agreement.read()
        mine = self._reconciler.held()
        desired = {**mine, **known}
        if ordered in desired:
            desired[ordered] = mine.get(ordered, _NOTHING)
        # Who repeats an order wants those to try again that could not follow it.
        if desired == known and (ordered is None or not self._agreement.failures(ordered)):
            return False
        self._number = self._agreement.write(desired)
        self._agreement.reach(self._number, {})
        return True

    async def _come_up(self) -> None:
        """Comes to what all are to serve, as far as that can be had."""
        number, desired = self._agreement.read()
        if number == self._number:
            return
        failures = {}
        for name, family in desired.items():
            try:
                await self._reconciler.follow(name, family)
            except ServerError as error:
                failures[name] = str(error)
                LOGGER.error("%s cannot be served as in the other workers: %s", name, error)
            except Exception:
                failures[name] = "it failed; the log says why"
                LOGGER.exception("%s cannot be served as in the other workers", name)
        self._number = number
        self._agreement.reach(number, failures)


async def _until(condition: Callable[[], bool]) -> None:
    """Looks until something is so that other processes do."""
    while not condition():  # noqa: ASYNC110 - they share memory with us, and no events
        await asyncio.sleep(_WAIT_SECONDS)


def as_agreed(found: Scan, agreement: Agreement) -> Scan:
    """What of a repository a worker loads that starts when others serve already.

    What they serve may be there no more; then it takes what is.
    """
    number, desired = agreement.read()
    if not number:  # none of them has loaded yet
        return found
    versions, broken = found
    chosen = []
    for name, family in desired.items():
        there = [version for version in versions if version.family == name]
        exact = [one for one in there if family.digests.get(one.version) == one.manifest.digest]
        if family.loaded and len(exact) < len(family.versions):
            LOGGER.warning("%s is in the repository no more as the other workers serve it", name)
            exact = there
        chosen += exact if family.loaded else []
    return chosen, [one for one in broken if one.family not in desired]
