"""The models that this server knows, and the state of each.

It changes on the event loop only; models may be found from any thread.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from polyhead_server.engine.device import Device
from polyhead_server.errors import InvalidRequestError, UnavailableError, UnknownModelError, listed, quoted
from polyhead_server.observability.metrics import Metrics
from polyhead_server.observability.statistics import Statistics
from polyhead_server.scheduling import Scheduler
from polyhead_server.serving.loading import Loaded

_LOADING_RETRY_MS = 500
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")


class Lease:
    """Count the users of something, and report when the last is gone. Lives on the event loop."""

    def __init__(self) -> None:
        self.users = 0
        self._at_end: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self.users += 1

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        if self._at_end is not None:
            self._end()

    def end(self, at_end: Callable[[], None]) -> None:
        """Call a function once, as soon as there are no users."""
        self._at_end = at_end
        self._end()

    def _end(self) -> None:
        if not self.users and self._at_end is not None:
            at_end, self._at_end = self._at_end, None
            at_end()


class ModelState(StrEnum):
    """The state of one version of a model, as the repository's index names it."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, kw_only=True, eq=False)
class Model(Loaded):
    """One graph of one version, ready to answer. Close it once its scheduler is closed."""

    scheduler: Scheduler
    device: Device
    """Where it runs."""
    statistics: Statistics
    lease: Lease = field(default_factory=Lease)
    """Held by every request that found this model, until the engine has answered it."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A version of a model, whatever its state."""

    name: str
    version: int
    state: ModelState = ModelState.LOADING
    reason: str = ""
    """Why it is not ready; or, where it is, why its files as they are now are not served."""
    model: Model | None = None
    awaited: bool = True
    """While it loads, requests for the newest version wait for it. Not so where another serves meanwhile."""


class Registry:
    """Find models by name and version.

    Changes belong to the event loop. Any thread may read: slots and the mappings that hold them are replaced,
    never changed.

    Args:
        on_change: Called after every change of a state.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self.metrics = Metrics()
        """Where requests are counted."""
        self.unattributed = Statistics(metrics=self.metrics)
        """Counts requests that ended before a model was found for them."""
        self.changes = 0
        """Counts the changes: while it stays the same, the same model is found for the same name."""
        self._slots: Mapping[str, Mapping[int, Slot]] = {}
        self._models: list[Model] = []

    # ---- Changes -----------------------------------------------------------------------------------

    def declare(self, name: str, version: int) -> None:
        """Register a version that will be loaded. One that is ready stays in service."""
        versions = self._slots.get(name, {})
        if version not in versions or versions[version].model is None:
            awaited = all(slot.model is None for slot in versions.values())
            self._put(Slot(name=name, version=version, awaited=awaited))

    def ready(self, model: Model) -> Model | None:
        """Put a loaded version into service; return the model that it replaces."""
        slot = self._slots[model.signature.name][model.signature.version]
        self._put(replace(slot, state=ModelState.READY, reason="", model=model))
        return slot.model

    def keep(self, name: str, version: int, reason: str) -> None:
        """Note why a version is still served as it was."""
        self._put(replace(self._slots[name][version], reason=reason))

    def fail(self, name: str, version: int, reason: str) -> None:
        """Note why a version is not served."""
        slot = self._get(name, version) or Slot(name=name, version=version)
        self._put(replace(slot, state=ModelState.UNAVAILABLE, reason=reason, model=None))

    def forget(self, name: str, version: int) -> Model | None:
        """Remove a version; return the model that was in service."""
        slot = self._get(name, version)
        self._set(name, {number: it for number, it in self._slots.get(name, {}).items() if number != version})
        return None if slot is None else slot.model

    def _put(self, slot: Slot) -> None:
        self._set(slot.name, {**self._slots.get(slot.name, {}), slot.version: slot})

    def _set(self, name: str, versions: Mapping[int, Slot]) -> None:
        others = {other: it for other, it in self._slots.items() if other != name}
        self._slots = {**others, name: versions} if versions else others
        self._models = [slot.model for slot in self.slots() if slot.model is not None]
        self.changes += 1
        self.on_change()

    def _get(self, name: str, version: int) -> Slot | None:
        return self._slots.get(name, {}).get(version)

    # ---- Reading -----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all models, ready or not."""
        return sorted(self._slots)

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model that are ready, oldest first."""
        return sorted(slot.version for slot in self._slots.get(name, {}).values() if slot.model is not None)

    def slots(self) -> Iterator[Slot]:
        """Yield every version of every model, by name and version."""
        for _, versions in sorted(self._slots.items()):
            yield from (slot for _, slot in sorted(versions.items()))

    def models(self) -> Sequence[Model]:
        """Return every version that is ready, by name and version."""
        return self._models

    def is_ready(self, name: str) -> bool:
        """Return whether the version that an unversioned request gets is ready."""
        versions = self._slots.get(name)
        return versions is not None and _default(versions).state is ModelState.READY

    def slot(self, name: str, version: str = "") -> Slot:
        """Find a version in any state.

        Args:
            name: The model's name.
            version: A number; empty for the newest version that did not fail to load.

        Raises:
            InvalidRequestError: The version is no number.
            UnknownModelError: There is no such model or version.
        """
        versions = self._slots.get(name)
        if versions is None:
            raise UnknownModelError(f"model {quoted(name)} is not served here; {self._others(name)}")
        if not version:
            return _default(versions)
        if not _VERSION.fullmatch(version):
            raise InvalidRequestError(
                "model_version must be a number without sign or leading zeros, such as 1, or empty for the "
                f"newest, was {quoted(version)}"
            )
        if int(version) not in versions:
            raise UnknownModelError(
                f"model {name} has no version {version}; it has {listed(sorted(versions))}"
            )
        return versions[int(version)]

    def _others(self, name: str) -> str:
        """Say what there is instead of an unknown model: the families, or the graphs of this one."""
        family, dot, _ = name.partition(".")
        graphs = [each for each in self.names() if each.partition(".")[0] == family]
        if dot and graphs:
            return f"of {family}, there are {listed(graphs)}"
        return f"there are {listed(dict.fromkeys(each.partition('.')[0] for each in self.names()))}"

    def find(self, name: str, version: str = "") -> Model:
        """Find a version that is ready. May be called from any thread.

        Raises:
            InvalidRequestError: The version is no number.
            UnknownModelError: There is no such model or version.
            UnavailableError: It is not ready.
        """
        slot = self.slot(name, version)
        if slot.model is not None:
            return slot.model
        if slot.state is ModelState.LOADING:
            raise UnavailableError(
                f"model {name} is loading: try again later, or wait until its health is SERVING",
                retry_after_ms=_LOADING_RETRY_MS,
            )
        raise UnavailableError(f"model {name} cannot be served: {slot.reason}", retry_after_ms=None)


def _default(versions: Mapping[int, Slot]) -> Slot:
    """Return the version that an unversioned request gets."""
    sound = [
        version
        for version, slot in versions.items()
        if slot.model is not None or (slot.state is ModelState.LOADING and slot.awaited)
    ]
    return versions[max(sound or versions)]
