"""Follow the model repository: at the start, periodically, and on request. Families go side by side."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from polyhead_server.errors import StartError, UnknownModelError, quoted
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.manifest import FAMILY
from polyhead_server.repository.scanning import Scan, list_families, no_models, scan_family
from polyhead_server.serving.loading import in_thread
from polyhead_server.serving.versions import ServedVersions


class Reconciler:
    """Make the models in service follow the repository. Lives on the event loop.

    Args:
        models: The repository's folder.
        versions: Loads, replaces and retires what it holds.
        side_by_side: How many families are looked at and loaded at once.
        families: The only ones to serve; none is all.
    """

    def __init__(
        self,
        models: Path | RemoteFolder,
        versions: ServedVersions,
        *,
        side_by_side: int,
        families: Sequence[str] = (),
    ) -> None:
        self._models = models
        self._families = families
        self._versions = versions
        self._side_by_side = side_by_side
        self._one_at_a_time = asyncio.Lock()
        self._updates: set[asyncio.Task[None]] = set()
        """Those in progress."""
        self._closed = False

    async def look(self, *, may_be_empty: bool) -> Scan:
        """Read the repository's manifests, and register what will be loaded first, and what cannot be.

        Args:
            may_be_empty: Whether the repository may hold nothing yet.

        Raises:
            StartError: There is no such folder, or nothing in it looks like a family.
        """
        found = [version for name in await self._names() for version in await self._scan(name)]
        if not found and not may_be_empty:
            raise no_models(self._models)
        self._versions.declare(found)
        return found

    async def reconcile(self, found: Scan | None = None) -> None:
        """Serve what the repository holds now.

        A version is retired only when two looks in a row miss it: one that is being replaced by hand may be
        away for a moment.

        Args:
            found: What it holds; None looks.

        Raises:
            StartError: The repository cannot be read.
        """
        async with self._one_at_a_time:
            names = await self._names() if found is None else [one.family for one in found]
            slots = asyncio.Semaphore(self._side_by_side)

            async def follow(name: str) -> None:
                async with slots:
                    if found is None:
                        versions = await self._scan(name)
                    else:
                        versions = [one for one in found if one.family == name]
                    await self._update(name, versions, patient=True)

            each = map(follow, sorted({*names, *self._versions.families}))
            for error in filter(None, await asyncio.gather(*each, return_exceptions=True)):
                raise error  # the first, after all have been followed

    async def watch(self, seconds: float) -> None:
        """Reconcile for ever, with pauses of so many seconds."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.reconcile()
            except StartError as error:
                LOGGER.error("what is served stays as it is: %s", error)
            except Exception:
                LOGGER.exception("looking at the repository failed; what is served stays as it is")

    async def load(self, name: str) -> None:
        """Serve what the repository holds of one family; try again what has failed.

        Raises:
            UnknownModelError: It holds no such family.
            NotLoadedError: A version cannot be loaded; what was served still is.
        """
        async with self._one_at_a_time:
            found = await self._scan(name) if FAMILY.fullmatch(name) else []
            if not found:
                raise UnknownModelError(f"model {quoted(name)} is no family of the repository")
            if name in self._versions.families:
                self._versions.families[name].failures.clear()
                self._versions.families[name].logged.clear()  # who asks again is told again
            await self._update(name, found, patient=False)
            self._versions.check(name)

    async def unload(self, name: str) -> None:
        """Take a family out of service; accepted requests are finished.

        Raises:
            UnknownModelError: There is no such family.
        """
        async with self._one_at_a_time:
            self._versions.unload(name)

    async def close(self) -> None:
        """End the work in progress, and close the models that are out of service."""
        self._closed = True
        for update in self._updates:
            update.cancel()
        await self._versions.close()

    async def _names(self) -> Sequence[str]:
        names = await in_thread(partial(list_families, self._models))
        return [name for name in names if not self._families or name in self._families]

    async def _scan(self, name: str) -> Scan:
        return await in_thread(partial(scan_family, self._models / name))

    async def _update(self, name: str, found: Scan, *, patient: bool) -> None:
        update = asyncio.ensure_future(self._versions.update(name, found, patient=patient))
        if self._closed:
            update.cancel()
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)
        await update
