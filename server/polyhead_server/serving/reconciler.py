"""Follow the model repository: at the start, periodically, and on request. Families go side by side.

Versions are loaded, replaced as a whole, and retired. The graphs of a family that serves nothing yet are in
service as soon as each is loaded. Otherwise a new or changed version is loaded beside the one in service and
replaces it between two requests; accepted requests finish on the old one. A version that cannot be loaded
leaves the one in service as it is, and the index shows why. A version has changed when its manifest has,
which holds the hash of every other file.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from polyhead_server.errors import (
    DeviceError,
    NotLoadedError,
    RepositoryError,
    StartError,
    UnknownModelError,
    listed,
    quoted,
)
from polyhead_server.observability.logs import LOGGER
from polyhead_server.remote import RemoteFolder
from polyhead_server.repository.manifest import FAMILY
from polyhead_server.repository.scanning import (
    Broken,
    Scan,
    VersionFolder,
    check_found,
    list_families,
    scan_family,
)
from polyhead_server.serving.loading import Failed, Loaded, in_thread, start
from polyhead_server.serving.registry import Model, Registry

Policy = Literal["latest", "all"]
"""`latest`: serve each family's newest version that can be loaded; `all`: serve every version."""

Results: TypeAlias = Generator[Loaded | Failed]


@dataclass
class Family:
    """What is known of one family."""

    name: str
    served: dict[int, list[Model]] = field(default_factory=dict)
    """The models of each version in service."""
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By version: the state of files that are not tried again, and the reason, which the log has told."""
    missing: set[int] = field(default_factory=set)
    """Versions in service that the last scan did not find."""


@dataclass(kw_only=True)
class Reconciler:
    """Make the models in service follow the repository. Lives on the event loop; loading is in threads."""

    models: Path | RemoteFolder
    """The repository's folder."""
    registry: Registry
    """The models in service."""
    policy: Policy
    loads: Callable[[VersionFolder], Results]
    """Loads the graphs of a version; called in a thread."""
    build: Callable[[Loaded], Model]
    """Makes a model of a loaded graph."""
    retired: Callable[[Model], None]
    """Called for each model that is out of service and has given its last answer."""
    side_by_side: int
    """How many families are looked at and loaded at once."""
    only: Sequence[str] = ()
    """The families to serve; none is all."""
    families: dict[str, Family] = field(default_factory=dict)
    retiring: set[Model] = field(default_factory=set)
    closing: set[asyncio.Task[None]] = field(default_factory=set)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    updates: set[asyncio.Task[None]] = field(default_factory=set)
    """Those in progress."""
    closed: bool = False

    async def look(self, *, may_be_empty: bool) -> Mapping[str, Scan]:
        """Read the repository's manifests, and register what will be loaded first, and what cannot be.

        Args:
            may_be_empty: Whether the repository may hold nothing yet.

        Raises:
            StartError: There is no such folder, or nothing in it looks like a family.
        """
        found = {name: await self._scan(name) for name in await self._names()}
        every = [one for versions in found.values() for one in versions]
        check_found(self.models, every, may_be_empty=may_be_empty)
        for name, versions in found.items():
            sound = [one for one in versions if isinstance(one, VersionFolder)]
            for one in versions:
                if isinstance(one, Broken):
                    self._report_failure(self.families.setdefault(name, Family(name)), one, [name])
                elif self.policy == "all" or one is sound[0]:
                    self._declare(one)
        return found

    async def reconcile(self, found: Mapping[str, Scan] | None = None) -> None:
        """Serve what the repository holds now.

        A version is retired only when two looks in a row miss it: one that is being replaced by hand may be
        away for a moment.

        Args:
            found: What it holds, by family; None looks.

        Raises:
            StartError: The repository cannot be read.
        """
        async with self.one_at_a_time:
            names = await self._names() if found is None else found
            slots = asyncio.Semaphore(self.side_by_side)

            async def follow(name: str) -> None:
                async with slots:
                    versions = await self._scan(name) if found is None else found.get(name, ())
                    await self._update(name, versions, patient=True)

            each = map(follow, sorted({*names, *self.families}))
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
            if name in self.families:
                self.families[name].failures.clear()  # who asks again is told again
            await self._update(name, found, patient=False)
            family = self.families[name]
            if family.failures:
                reasons = "; ".join(
                    f"version {version}: {reason}" for version, (_, reason) in sorted(family.failures.items())
                )
                still = listed(sorted(family.served))
                serves = f"version {still} is served" if still else "no version is served"
                raise NotLoadedError(f"{name} could not be loaded as it is now ({serves}): {reasons}")

    async def unload(self, name: str) -> None:
        """Take a family out of service; accepted requests are finished.

        Raises:
            UnknownModelError: There is no such family.
        """
        async with self.one_at_a_time:
            if name not in self.families:
                raise UnknownModelError(
                    f"model {quoted(name)} is no family here; there are {listed(self.families)}"
                )
            family = self.families[name]
            for version in list(family.served):
                for model in self._withdraw(family, version):
                    self.registry.fail(model.signature.name, version, "it was unloaded")
                LOGGER.info("%s version %d is unloaded", name, version)

    async def close(self) -> None:
        """End the work in progress, and close the models that are out of service, in use or not."""
        self.closed = True
        for update in self.updates:
            update.cancel()
        for model in list(self.retiring):
            self._close(model)
        await asyncio.gather(*self.closing)

    async def _names(self) -> Sequence[str]:
        names = await in_thread(partial(list_families, self.models))
        return [name for name in names if not self.only or name in self.only]

    async def _scan(self, name: str) -> Scan:
        return await in_thread(partial(scan_family, self.models / name))

    async def _update(self, name: str, found: Scan, *, patient: bool) -> None:
        update = asyncio.ensure_future(self._follow(name, found, patient=patient))
        if self.closed:
            update.cancel()
        self.updates.add(update)
        update.add_done_callback(self.updates.discard)
        await update

    async def _follow(self, name: str, found: Scan, *, patient: bool) -> None:
        """Serve what the repository holds of a family.

        Args:
            name: The family.
            found: Its versions, newest first.
            patient: Retire a version only when two scans in a row miss it.
        """
        family = self.families.setdefault(name, Family(name))
        versions = [one.version for one in found]
        gone = family.served.keys() - {*versions}
        if patient and not gone <= family.missing:
            family.missing |= gone
            return
        family.missing.clear()
        in_service: list[int] = []
        for one in found:
            if await self._serve(family, one):
                in_service.append(one.version)
                if self.policy == "latest":
                    break
        # Where the newest version cannot be loaded and none takes its place, the served ones stay.
        for version in sorted(gone if not in_service else family.served.keys() - {*in_service}):
            self._withdraw(family, version)
            LOGGER.info("%s version %d is not served any more", name, version)
        oldest = min(in_service, default=0)
        self._forget(family, {version for version in versions if version >= oldest})
        family.failures = {version: why for version, why in family.failures.items() if version in versions}
        if not family.served and not found:
            del self.families[name]

    def _declare(self, version: VersionFolder) -> None:
        for graph in version.manifest.graphs:
            self.registry.declare(version.manifest.served_name(graph), version.version)

    async def _serve(self, family: Family, found: VersionFolder | Broken) -> bool:
        """Load a version where needed; return whether it is in service, changed or not."""
        number = found.version
        served = family.served.get(number)
        if isinstance(found, Broken):
            self._report_failure(family, found, [family.name])
            return served is not None
        if served and served[0].signature.manifest.digest == found.manifest.digest:
            family.failures.pop(number, None)
            names = [model.signature.name for model in served]
            if any(self.registry.slot(name, str(number)).reason for name in names):
                LOGGER.info("%s version %d has the files again that are served", family.name, number)
                for name in names:
                    self.registry.keep(name, number, "")
            return True
        if number in family.failures and family.failures[number][0] == found.state:
            return served is not None
        return await self._take_over(family, found)

    async def _take_over(self, family: Family, found: VersionFolder) -> bool:
        """Load a version and put it into service; return whether it, or what was there before, is."""
        number = found.version
        old = family.served.get(number, [])
        self._declare(found)
        at_once = not family.served  # a graph need not wait for the others: there is nothing to replace
        loaded: list[Loaded] = []
        failed: list[Failed] = []
        models: list[Model] = []
        results = self.loads(found)
        while (result := await _next(results)) is not None:
            if isinstance(result, Failed):
                failed.append(result)
                continue
            loaded.append(result)
            if at_once:
                models.append(self._put_into_service(result))
        state = "" if failed and failed[0].may_pass else found.state  # the empty state is tried again
        # While a family serves, its versions are replaced with all of their graphs or not at all, but
        # for those that this device does not run: it would not run them at another look either.
        refused = all(isinstance(failure.error, DeviceError) for failure in failed)
        if failed and not models and not (refused and loaded):
            for result in loaded:
                await in_thread(result.close)
            names = [found.manifest.served_name(graph) for graph in found.manifest.graphs]
            self._report_failure(family, failed[0], names, state)
            return bool(old)
        if not at_once:  # all of them in one iteration of the event loop
            models = [self._put_into_service(result) for result in loaded]
        for name in {model.signature.name for model in old} - {model.signature.name for model in models}:
            self._retire(self.registry.forget(name, number))
        family.served.pop(number, None)  # what failed is not served as before
        for failure in reversed(failed):  # of which the first is remembered
            self._report_failure(family, failure, [failure.name], state)
        if not failed:
            family.failures.pop(number, None)
        family.served[number] = models
        LOGGER.info("%s version %d is %s", family.name, number, "replaced" if old else "ready")
        return True

    def _put_into_service(self, loaded: Loaded) -> Model:
        model = self.build(loaded)
        self._retire(self.registry.ready(model))
        return model

    def _report_failure(
        self, family: Family, why: Failed | Broken, names: Sequence[str], state: str = ""
    ) -> None:
        """Show in the index, and once in the log, why a version is not served as its files are now.

        Args:
            family: The family.
            why: The version, and the reason.
            names: The models that it has in the index, unless it is served as before.
            state: That of files that are not tried again; empty: they are.
        """
        version, reason = why.version, why.reason
        error = why.error if isinstance(why, Failed) else None
        show = self.registry.fail
        shown = reason
        if served := family.served.get(version):
            show = self.registry.keep
            shown = f"the files have changed and cannot be served: {reason}; it is served as before"
            names = [model.signature.name for model in served]
        _, told = family.failures.get(version, ("", ""))
        family.failures[version] = state, reason
        if told != reason:
            unforeseen = None if isinstance(error, RepositoryError | DeviceError) else error
            cause = "" if error is None or error.__cause__ is None else f" ({error.__cause__})"
            text = f"model {family.name} version {version} is not served: {reason}{cause}"
            LOGGER.error("%s", text, exc_info=unforeseen)
        for name in names:
            show(name, version, shown)

    def _withdraw(self, family: Family, version: int) -> Sequence[Model]:
        """Take a version out of service."""
        models = family.served.pop(version)
        for model in models:
            self._retire(self.registry.forget(model.signature.name, version))
        return models

    def _forget(self, family: Family, versions: set[int]) -> None:
        """Remove all but these versions from the index, unless they are in service."""
        for slot in self.registry.slots():
            is_here = slot.name.partition(".")[0] == family.name
            if is_here and slot.model is None and slot.version not in versions:
                self.registry.forget(slot.name, slot.version)

    def _retire(self, model: Model | None) -> None:
        """Close a model that is out of service after its last answer."""
        if model is not None:
            self.retiring.add(model)
            model.lease.end(lambda: self._close(model))

    def _close(self, model: Model) -> None:
        if model in self.retiring:
            self.retiring.discard(model)
            self.retired(model)
            task = asyncio.get_running_loop().create_task(_close(model))
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)


async def _next(results: Results) -> Loaded | Failed | None:
    """Return the next result, or None after the last. If this is cancelled, close what is being loaded."""
    step = start(lambda: next(results, None))
    try:
        return await asyncio.wrap_future(step)
    except asyncio.CancelledError:
        step.add_done_callback(partial(_abandon, results))
        raise


def _abandon(results: Results, step: Future[Loaded | Failed | None]) -> None:
    """Close a load that has come to a result, or has not begun to."""
    results.close()
    if not step.cancelled() and step.exception() is None and isinstance(loaded := step.result(), Loaded):
        loaded.close()


async def _close(model: Model) -> None:
    await model.scheduler.close()
    await in_thread(model.close)
