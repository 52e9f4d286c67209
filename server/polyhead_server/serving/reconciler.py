"""Follow the model repository: at the start, periodically, and on request. Families go side by side."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from polyhead_server.errors import StartError, UnknownModelError, quoted
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.manifest import FAMILY
from polyhead_server.repository.scanning import Scan, list_families, no_models, scan_family
from polyhead_server.serving.loading import in_thread
from polyhead_server.serving.versions import ServedVersions


@dataclass(kw_only=True)
class Reconciler:
    """Make the models in service follow the repository. Lives on the event loop."""

    models: Path | RemoteFolder
    """The repository's folder."""
    versions: ServedVersions
    """Loads, replaces and retires what it holds."""
    side_by_side: int
    """How many families are looked at and loaded at once."""
    families: Sequence[str] = ()
    """The only ones to serve; none is all."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    updates: set[asyncio.Task[None]] = field(default_factory=set)
    """Those in progress."""
    closed: bool = False

    async def look(self, *, may_be_empty: bool) -> Scan:
        """Read the repository's manifests, and register what will be loaded first, and what cannot be.

        Args:
            may_be_empty: Whether the repository may hold nothing yet.

        Raises:
            StartError: There is no such folder, or nothing in it looks like a family.
        """
        found = [version for name in await self._names() for version in await self._scan(name)]
        if not found and not may_be_empty:
            raise no_models(self.models)
        self.versions.declare(found)
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
        async with self.one_at_a_time:
            names = await self._names() if found is None else [one.family for one in found]
            slots = asyncio.Semaphore(self.side_by_side)

            async def follow(name: str) -> None:
                async with slots:
                    if found is None:
                        versions = await self._scan(name)
                    else:
                        versions = [one for one in found if one.family == name]
                    await self._update(name, versions, patient=True)

            each = map(follow, sorted({*names, *self.versions.families}))
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
        async with self.one_at_a_time:
            found = await self._scan(name) if FAMILY.fullmatch(name) else []
            if not found:
                raise UnknownModelError(f"model {quoted(name)} is no family of the repository")
            if name in self.versions.families:
                self.versions.families[name].failures.clear()  # who asks again is told again
            await self._update(name, found, patient=False)
            self.versions.check(name)

    async def unload(self, name: str) -> None:
        """Take a family out of service; accepted requests are finished.

        Raises:
            UnknownModelError: There is no such family.
        """
        async with self.one_at_a_time:
            self.versions.unload(name)

    async def close(self) -> None:
        """End the work in progress, and close the models that are out of service."""
        self.closed = True
        for update in self.updates:
            update.cancel()
        await self.versions.close()

    async def _names(self) -> Sequence[str]:
        names = await in_thread(partial(list_families, self.models))
        return [name for name in names if not self.families or name in self.families]

    async def _scan(self, name: str) -> Scan:
        return await in_thread(partial(scan_family, self.models / name))

    async def _update(self, name: str, found: Scan, *, patient: bool) -> None:
        update = asyncio.ensure_future(self.versions.update(name, found, patient=patient))
        if self.closed:
            update.cancel()
        self.updates.add(update)
        update.add_done_callback(self.updates.discard)
        await update
