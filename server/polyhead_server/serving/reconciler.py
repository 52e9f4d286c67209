"""Brings what is served into line with what lies in the repository: at the start, and at work.

A version that is new or has changed is loaded beside what is served, and takes its place from one request to
the next; requests that the old one has accepted are finished by it. What cannot be loaded leaves what is
served as it was, and the index says why. A version has changed when its manifest has, which holds the hash of
every other file.

Families are worked on one after the other. What takes too long, because its file system does not answer, goes
on alone: its family is left as it is until that ends, and the others are still followed.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from polyhead_server.errors import (
    NotLoadedError,
    SlowError,
    StartError,
    UnknownModelError,
    listed,
    quoted,
)
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository import Broken, VersionFolder, list_families, no_models, scan_family
from polyhead_server.repository.manifest import FAMILY
from polyhead_server.serving.loading import Failed, Loaded
from polyhead_server.serving.registry import Model, Registry

LOADING = "loading"
"""The name of threads that load."""

LOOK_SECONDS = 10.0
"""A file system that has not shown a folder and its manifests by then may never do so."""

LOAD_SECONDS = 300.0
"""Longer than any load that goes well: copying and hashing gigabytes from a slow disk, and measuring."""

_UNLOADED = "it was unloaded"
_REPOSITORY = ""
"""In a family's place, for the list of all of them."""

T = TypeVar("T")
Load = Callable[[VersionFolder], Iterator[Loaded | Failed]]
Scan = tuple[Sequence[VersionFolder], Sequence[Broken]]


@dataclass(frozen=True, kw_only=True)
class _Served:
    """A version that is in service."""

    digest: str
    models: Mapping[str, Model]


@dataclass
class _Family:
    """What is known of one family."""

    served: dict[int, _Served] = field(default_factory=dict)
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    """State of the files, and why they could not be loaded."""
    missing: set[int] = field(default_factory=set)
    """Versions in service that were not there when the repository was last looked at."""


class Reconciler:
    """Loads, replaces and retires versions. Lives on the event loop; loading happens in threads.

    Args:
        models: The repository's folder.
        policy: `latest`: of each family the newest version that can be loaded; `all`: every version.
        registry: What is served.
        load: Loads the graphs of a version; called in a thread.
        build: Makes a model of a loaded graph.
        retired: Told of every model that is out of service and has given its last answer.
        look_seconds: How long looking at a family may take before others are looked at beside it.
        load_seconds: How long loading one may.
    """

    def __init__(
        self,
        models: Path,
        *,
        policy: Literal["latest", "all"],
        registry: Registry,
        load: Load,
        build: Callable[[Loaded], Model],
        retired: Callable[[Model], None],
        look_seconds: float = LOOK_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self._models = models
        self._policy = policy
        self._registry = registry
        self._load = load
        self._build = build
        self._retired = retired
        self._families: dict[str, _Family] = {}
        self._look_seconds = look_seconds
        self._load_seconds = load_seconds
        self._one_at_a_time = asyncio.Lock()
        self._busy: dict[str, asyncio.Future[Any]] = {}
        """What is being done to families: to one, and to those that take too long."""
        self._leaving: set[Model] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def declare(self, found: Scan) -> None:
        """Makes known what will be loaded first, and what cannot be."""
        versions, broken = found
        for one in broken:
            self._refuse(one.family, one.version, one.reason, [one.family])
        seen: set[str] = set()
        for version in versions:
            if self._policy == "all" or version.family not in seen:
                self._declare(version)
            seen.add(version.family)

    async def reconcile(self, found: Scan | None = None, *, patient: bool = True) -> None:
        """Takes over what the repository holds now.

        Args:
            found: What it holds; None looks.
            patient: What is gone is gone only when it is still missing the next time: a version that is being
                replaced by hand may be away for a moment.

        Raises:
            StartError: The repository cannot be read.
        """
        async with self._one_at_a_time:
            if found is None:
                self._check_idle(_REPOSITORY)
                listing = in_thread(lambda: list_families(self._models))
                names = await self._in_time(_REPOSITORY, listing, self._look_seconds)
            else:
                names = [one.family for both in found for one in both]
            for name in sorted({*names, *self._families}):
                with suppress(SlowError):  # the log says so
                    of_it = await self._look(name) if found is None else _of(name, found)
                    updating = self._update(name, of_it, patient=patient)
                    await self._in_time(name, updating, self._load_seconds)

    @property
    def busy(self) -> list[str]:
        """The families that are being worked on: one, and those that take too long."""
        return list(self._busy)

    async def wait_for_any(self) -> None:
        """Waits until something is in service, or nothing is being loaded any more."""
        while self._busy and not self._registry.models():
            await asyncio.wait(self._busy.values(), return_when=asyncio.FIRST_COMPLETED)

    async def watch(self, seconds: float) -> None:
        """Looks at the repository for ever, with pauses of so many seconds."""
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

    async def load(self, name: str) -> None:
        """Takes over what the repository holds of one family.

        Raises:
            UnknownModelError: It holds no such family.
            NotLoadedError: Its newest version cannot be loaded; what was served still is.
            SlowError: It takes too long, and goes on.
        """
        if not FAMILY.fullmatch(name):
            raise UnknownModelError(f"model {quoted(name)} is no family of the repository")
        async with self._one_at_a_time:
            found = await self._look(name)
            if not any(found):
                raise UnknownModelError(f"model {quoted(name)} is no family of the repository")
            family = self._families.setdefault(name, _Family())
            family.failed.clear()
            await self._in_time(name, self._update(name, found, patient=False), self._load_seconds)
            _check(name, family)

    async def unload(self, name: str) -> None:
        """Takes a family out of service; what it has accepted is finished.

        Raises:
            UnknownModelError: There is no such family.
            SlowError: It is being loaded, which takes long.
        """
        async with self._one_at_a_time:
            self._check_idle(name)
            family = self._families.get(name)
            if family is None:
                raise UnknownModelError(
                    f"model {quoted(name)} is no family here; there are {listed(self._families)}"
                )
            self._unload(name, family)

    async def close(self) -> None:
        """Ends what is still computed on models that are out of service."""
        self._closed = True
        for work in self._busy.values():
            work.cancel()
        for model in list(self._leaving):
            self._close(model)
        await asyncio.gather(*self._closing)

    async def _look(self, name: str) -> Scan:
        """What the repository holds of a family.

        Raises:
            SlowError: It takes too long, or the family is still worked on.
        """
        self._check_idle(name)
        looking = in_thread(lambda: scan_family(self._models / name))
        return await self._in_time(name, looking, self._look_seconds)

    def _check_idle(self, name: str) -> None:
        if name in self._busy:
            raise SlowError(name)

    async def _in_time(self, name: str, work: Awaitable[T], seconds: float) -> T:
        """Waits for work on a family for so long. Later it goes on alone, and the family is left as it is.

        Raises:
            SlowError: It takes longer.
        """
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        self._busy[name] = task
        task.add_done_callback(lambda _: self._busy.pop(name))
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            slow = SlowError(name)
            LOGGER.error("%s: after %g s the others are followed without it", slow, seconds)
            task.add_done_callback(_log_end(name))
            raise slow
        return task.result()

    async def _update(self, name: str, found: Scan, *, patient: bool) -> None:
        versions, broken = found
        family = self._families.setdefault(name, _Family())
        there = {one.version: one for one in versions}
        unreadable = {one.version: one.reason for one in broken}
        gone = {version for version in family.served if version not in there and version not in unreadable}
        if patient and (newly := gone - family.missing):
            family.missing |= newly
            return
        family.missing.clear()
        chosen: list[int] = []
        for version in sorted({*there, *unreadable}, reverse=True):
            if version in there:
                in_service = await self._take(family, there[version])
            else:
                in_service = version in family.served
                self._note(family, version, unreadable[version], unreadable[version])
                self._refuse(name, version, unreadable[version], family.served.get(version))
            if self._closed:
                return
            if in_service:
                chosen.append(version)
                if self._policy == "latest":
                    break
        # Where the newest cannot be loaded and none is there to take its place, what serves goes on.
        for version in [version for version in family.served if version not in chosen]:
            if chosen or version in gone:
                self._retire(name, version)
                LOGGER.info("%s version %d is not served any more", name, version)
        self._forget_what_is_gone(name, {*there, *unreadable}, chosen)
        if not family.served and not there and not unreadable:
            del self._families[name]

    async def _take(self, family: _Family, version: VersionFolder) -> bool:
        """Loads a version where that is needed; returns whether it is in service, in whatever state."""
        number = version.version
        served = family.served.get(number)
        if served is not None and served.digest == version.manifest.digest:
            if family.failed.pop(number, None):
                for name in served.models:
                    self._registry.keep(name, number, "")
            return True
        failed = family.failed.get(number)
        if failed is not None and failed[0] == version.state:
            return served is not None
        self._declare(version)
        results = await in_thread(lambda: list(self._load(version)))
        if self._closed:
            return served is not None
        failures = [result for result in results if isinstance(result, Failed)]
        loaded = [result for result in results if isinstance(result, Loaded)]
        # At work a version is taken over with all of its graphs or not at all.
        if failures and (family.served or not loaded):
            for result in loaded:
                await in_thread(result.close)
            state = "" if failures[0].may_pass else version.state  # no files' state: tried again
            self._note(family, number, state, failures[0].reason)
            self._refuse(
                version.family,
                number,
                failures[0].reason,
                served or [version.manifest.served_name(graph) for graph in version.manifest.graphs],
            )
            return served is not None
        family.failed.pop(number, None)
        for failure in failures:
            self._note(family, number, version.state, failure.reason)
            self._refuse(version.family, number, failure.reason, [failure.name])
        self._replace(family, version, loaded)
        return True

    def _replace(self, family: _Family, version: VersionFolder, loaded: Sequence[Loaded]) -> None:
        """Puts a version into service, in one turn of the event loop."""
        number = version.version
        old = family.served.get(number)
        models = {result.signature.name: self._build(result) for result in loaded}
        for model in models.values():
            if before := self._registry.ready(model):
                self._leave(before)
        for name in [] if old is None else old.models.keys() - models.keys():
            if before := self._registry.forget(name, number):
                self._leave(before)
        family.served[number] = _Served(digest=version.manifest.digest, models=models)
        LOGGER.info(
            "%s version %d is %s", version.family, number, "ready" if old is None else "served as it is now"
        )

    def _declare(self, version: VersionFolder) -> None:
        for graph in version.manifest.graphs:
            self._registry.declare(version.manifest.served_name(graph), version.version)

    def _note(self, family: _Family, version: int, state: str, reason: str) -> None:
        family.failed[version] = (state, reason)

    def _refuse(
        self, family: str, version: int, reason: str, names: "_Served | Sequence[str] | None"
    ) -> None:
        """Says why a version cannot be taken over: in the index, and once in the log."""
        if isinstance(names, _Served):
            kept = f"the files have changed and cannot be served: {reason}; it is served as before"
            changed = any(self._registry.slot(name, str(version)).reason != kept for name in names.models)
            for name in names.models:
                self._registry.keep(name, version, kept)
        else:
            changed = any(self._registry.reason(name, version) != reason for name in names or [family])
            for name in names or [family]:
                self._registry.fail(name, version, reason)
        if changed:
            LOGGER.error("model %s version %d is not served: %s", family, version, reason)

    def _unload(self, name: str, family: _Family) -> None:
        for number, served in list(family.served.items()):
            self._retire(name, number)
            for model in served.models:
                self._registry.fail(model, number, _UNLOADED)
            LOGGER.info("%s version %d is unloaded", name, number)

    def _retire(self, name: str, version: int) -> None:
        for model in self._families[name].served.pop(version).models:
            if before := self._registry.forget(model, version):
                self._leave(before)

    def _forget_what_is_gone(self, family: str, there: set[int], chosen: Sequence[int]) -> None:
        """Takes out of the index what the repository holds no more, or what is older than what is served."""
        wanted = {version for version in there if not chosen or version >= min(chosen)}
        for slot in list(self._registry.slots()):
            if slot.name.partition(".")[0] == family and slot.model is None and slot.version not in wanted:
                self._registry.forget(slot.name, slot.version)

    def _leave(self, model: Model) -> None:
        """Closes a model that is out of service, after its last answer."""
        self._leaving.add(model)
        model.lease.end(lambda: self._close(model))

    def _close(self, model: Model) -> None:
        if model in self._leaving:
            self._leaving.discard(model)
            self._retired(model)
            task = asyncio.get_running_loop().create_task(_close(model))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close(model: Model) -> None:
    await model.scheduler.close()
    await in_thread(model.close)


def _check(name: str, family: _Family) -> None:
    """Says what could not be loaded."""
    if family.failed:
        reasons = "; ".join(
            f"version {version}: {reason}" for version, (_, reason) in sorted(family.failed.items())
        )
        still = listed(sorted(family.served))
        serves = f"version {still} is served" if still else "no version is served"
        raise NotLoadedError(f"{name} could not be loaded as it is now ({serves}): {reasons}")


def _log_end(name: str) -> Callable[[asyncio.Future[Any]], None]:
    def log(work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            LOGGER.info("%s: what took long has ended", name or "the repository", exc_info=work.exception())

    return log


async def look(models: Path, *, may_be_empty: bool, seconds: float = LOOK_SECONDS) -> Scan:
    """Reads the manifests of a repository as `scan` does, without waiting for what does not answer.

    Args:
        models: The repository's folder.
        may_be_empty: It need not hold anything yet.
        seconds: How long the list of families, and each of them, may take.

    Raises:
        StartError: There is no such folder, it does not answer, or nothing in it looks like a family.
    """
    silent = f"it did not answer within {seconds:g} s"
    try:
        names = await asyncio.wait_for(in_thread(lambda: list_families(models)), seconds)
    except TimeoutError as error:
        raise StartError(f"--models must be a folder that can be read, {models} is not: {silent}") from error
    versions: list[VersionFolder] = []
    broken: list[Broken] = []
    for name in names:
        try:
            found = await asyncio.wait_for(in_thread(partial(scan_family, models / name)), seconds)
        except TimeoutError:
            broken.append(Broken(family=name, version=0, reason=f"its folder cannot be read: {silent}"))
        else:
            versions += found[0]
            broken += found[1]
    if not versions and not broken and not may_be_empty:
        raise no_models(models)
    return versions, broken


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Calls a function in a thread of its own, a daemon: a stop signal must not wait for a large model."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T may be None

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: the server has stopped meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=LOADING, daemon=True).start()
    return future


def _of(family: str, found: Scan) -> Scan:
    versions, broken = found
    return [one for one in versions if one.family == family], [one for one in broken if one.family == family]
