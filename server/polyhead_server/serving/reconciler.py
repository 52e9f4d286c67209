"""Follow the model repository: at the start, periodically, and on request.

Several families are handled side by side. One whose file system does not answer in time goes on alone: it is
left as it is until that ends, and the others are still followed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from polyhead_server.errors import SlowError, StartError, UnknownModelError, quoted
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.manifest import FAMILY
from polyhead_server.repository.scanning import (
    Broken,
    Scan,
    VersionFolder,
    list_families,
    no_models,
    scan_family,
)
from polyhead_server.serving.loading import Loaded, in_thread
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.serving.versions import Load, Policy, ServedVersions

LOOK_SECONDS = 10.0
"""A file system that has not shown a folder and its manifests by then may never do so."""

LOAD_SECONDS = 300.0
"""Longer than any load that goes well: copying and hashing gigabytes from a slow disk."""

_REPOSITORY = ""
"""Stands for the list of all families where a family's name is expected."""

T = TypeVar("T")


class Reconciler:
    """Make the models in service follow the repository. Lives on the event loop.

    Args:
        models: The repository's folder.
        policy: Which versions of a family to serve.
        registry: The models in service.
        load: Loads the graphs of a version; called in a thread.
        build: Makes a model of a loaded graph.
        retired: Called for each model that is out of service and has given its last answer.
        side_by_side: How many families are looked at and loaded at once.
        families: The only ones to serve; none is all.
        look_seconds: How long looking at a family may hold up the others.
        load_seconds: How long loading one may.
    """

    def __init__(
        self,
        models: Path | RemoteFolder,
        *,
        policy: Policy,
        registry: Registry,
        load: Load,
        build: Callable[[Loaded], Model],
        retired: Callable[[Model], None],
        side_by_side: int,
        families: Sequence[str] = (),
        look_seconds: float = LOOK_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self._models = models
        self._families = families
        self._registry = registry
        self._versions = ServedVersions(registry, policy=policy, load=load, build=build, retired=retired)
        self._side_by_side = side_by_side
        self._look_seconds = look_seconds
        self._load_seconds = load_seconds
        self._one_at_a_time = asyncio.Lock()
        self._busy: dict[str, asyncio.Future[Any]] = {}
        """The work in progress, by family: one, and those that take too long."""
        self._closed = False

    def declare(self, found: Scan) -> None:
        """Register what will be loaded first, and what cannot be."""
        self._versions.declare(found)

    async def reconcile(self, found: Scan | None = None, *, patient: bool = True) -> None:
        """Serve what the repository holds now.

        Args:
            found: What it holds; None looks.
            patient: Retire a version only when two looks in a row miss it: one that is being replaced by
                hand may be away for a moment.

        Raises:
            StartError: The repository cannot be read.
            SlowError: It does not answer.
        """
        async with self._one_at_a_time:
            if found is None:
                names = _chosen(await self._look(_REPOSITORY, list_families), self._families)
            else:
                names = [one.family for one in found]

            async def follow(name: str) -> None:
                with suppress(SlowError):  # the log says so
                    if found is None:
                        versions = await self._look(name, scan_family)
                    else:
                        versions = [one for one in found if one.family == name]
                    await self._update(name, versions, patient=patient)

            await _for_each(sorted({*names, *self._versions.families}), follow, self._side_by_side)

    async def watch(self, seconds: float) -> None:
        """Reconcile for ever, with pauses of so many seconds."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.reconcile()
            except SlowError:
                pass  # the log says so
            except StartError as error:
                LOGGER.error("what is served stays as it is: %s", error)
            except Exception:
                LOGGER.exception("looking at the repository failed; what is served stays as it is")

    async def wait_for_any(self) -> None:
        """Wait until a model is in service, or nothing is being loaded any more."""
        while self._busy and not self._registry.models():
            await asyncio.wait(self._busy.values(), return_when=asyncio.FIRST_COMPLETED)

    async def load(self, name: str) -> None:
        """Serve what the repository holds of one family; try again what has failed.

        Raises:
            UnknownModelError: It holds no such family.
            NotLoadedError: A version cannot be loaded; what was served still is.
            SlowError: It takes too long, and goes on.
        """
        async with self._one_at_a_time:
            found = await self._look(name, scan_family) if FAMILY.fullmatch(name) else []
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
            SlowError: It is being loaded, which takes long.
        """
        async with self._one_at_a_time:
            if name in self._busy:
                raise SlowError(name)
            self._versions.unload(name)

    async def close(self) -> None:
        """End the work in progress, and close the models that are out of service."""
        self._closed = True
        for work in self._busy.values():
            work.cancel()
        await self._versions.close()

    async def _look(self, name: str, read: Callable[[Path | RemoteFolder], T]) -> T:
        return await self._in_time(
            name, lambda: in_thread(lambda: read(self._models / name)), self._look_seconds
        )

    async def _update(self, name: str, found: Scan, *, patient: bool) -> None:
        await self._in_time(
            name, lambda: self._versions.update(name, found, patient=patient), self._load_seconds
        )

    async def _in_time(self, name: str, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Wait for work on a family. Where it takes too long, leave it to itself, and the family as it is.

        Raises:
            SlowError: It takes longer, or earlier work on the family still goes on.
        """
        if name in self._busy:
            raise SlowError(name)
        task: asyncio.Future[T] = asyncio.ensure_future(work())
        if self._closed:
            task.cancel()
        self._busy[name] = task
        task.add_done_callback(lambda _: self._busy.pop(name))
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            slow = SlowError(name)
            LOGGER.error("%s: after %g s the others are followed without it", slow, seconds)
            task.add_done_callback(partial(_log_end, name))
            raise slow
        return task.result()


async def _for_each(names: Iterable[str], work: Callable[[str], Awaitable[None]], most: int) -> None:
    """Do work for each name, for so many at once; then raise the first exception, if there is one."""
    slots = asyncio.Semaphore(most)

    async def one(name: str) -> None:
        async with slots:
            await work(name)

    for result in await asyncio.gather(*map(one, names), return_exceptions=True):
        if result is not None:
            raise result


def _log_end(name: str, work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        LOGGER.info("%s: the slow operation has ended", name or "the repository", exc_info=work.exception())


def _chosen(there: Sequence[str], families: Sequence[str]) -> Sequence[str]:
    return [name for name in there if not families or name in families]


async def look(
    models: Path | RemoteFolder,
    *,
    families: Sequence[str] = (),
    may_be_empty: bool,
    seconds: float = LOOK_SECONDS,
) -> Scan:
    """Read the manifests of a repository as `scan` does, leaving out families that do not answer.

    Args:
        models: The repository's folder.
        families: The only ones to look for; none is all.
        may_be_empty: Whether it may hold nothing yet.
        seconds: How long the list of families, and each of them, may take.

    Raises:
        StartError: There is no such folder, it does not answer, or nothing in it looks like a family.
    """
    silent = f"it did not answer within {seconds:g} s"
    try:
        there = await asyncio.wait_for(in_thread(lambda: list_families(models)), seconds)
    except TimeoutError as error:
        raise StartError(f"--models must be a folder that can be read, {models} is not: {silent}") from error
    found: list[VersionFolder | Broken] = []
    for name in _chosen(there, families):
        try:
            found += await asyncio.wait_for(in_thread(partial(scan_family, models / name)), seconds)
        except TimeoutError:
            found.append(Broken(family=name, version=0, reason=f"its folder cannot be read: {silent}"))
    if not found and not may_be_empty:
        raise no_models(models)
    return found
