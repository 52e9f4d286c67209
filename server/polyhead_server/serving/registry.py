"""The models that this server knows, and what state each is in.

It changes on the event loop only; models may be found from any thread.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from polyhead_server.errors import InvalidRequestError, UnavailableError, UnknownModelError, listed, quoted
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.observability.statistics import Statistics
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling import Scheduler
from polyhead_server.serving.tokeniser import Tokeniser

_LOADING_RETRY_MS = 500


class Lease:
    """Counts the users of something, and tells when the last is gone. Lives on the event loop."""

    def __init__(self) -> None:
        self._users = 0
        self._at_end: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        self._end()

    def end(self, at_end: Callable[[], None]) -> None:
        """Calls a function once, when nobody uses it any more: now, or after the last."""
        self._at_end = at_end
        self._end()

    def _end(self) -> None:
        if not self._users and self._at_end is not None:
            at_end, self._at_end = self._at_end, None
            at_end()


class State(StrEnum):
    """Of one version of a model, as the repository's index names it."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """One graph of one version, ready to answer."""

    signature: Signature
    scheduler: Scheduler
    tokeniser: Tokeniser | None
    provider: str
    """onnxruntime's execution provider that is really in use."""
    close: Callable[[], None] = lambda: None
    """Gives back its memory once the scheduler is closed. May block for some moments."""
    statistics: Statistics = field(default_factory=Statistics)
    lease: Lease = field(default_factory=Lease)
    """Held by every request that found this model, until the engine has answered it."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A version of a model, whatever its state."""

    name: str
    version: int
    state: State = State.LOADING
    reason: str = ""
    """Why it is not ready; or, where it is, why a newer state of it could not be taken over."""
    model: Model | None = None
    awaited: bool = True
    """While it loads, requests for the newest version wait for it. Not so where another serves meanwhile."""


class Registry:
    """Finds models by name and version.

    Args:
        on_change: Called after every change of a state.
        counters: Where what the models do is counted.
    """

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, *, counters: SharedCounters | None = None
    ) -> None:
        self.on_change = on_change
        self.counters = counters or SharedCounters.create()
        self.unattributed = Statistics(self.counters)
        """Requests that ended before a model was found for them."""
        self.changes = 0
        """Counts the changes: while it stays the same, the same model is found for the same name."""
        self._slots: Mapping[str, Mapping[int, Slot]] = {}

    def declare(self, name: str, version: int) -> None:
        """Makes a version known before it is loaded. One that is ready stays in service until then."""
        versions = self._slots.get(name, {})
        if version not in versions or versions[version].model is None:
            awaited = all(slot.model is None for slot in versions.values())
            self._put(name, {**versions, version: Slot(name=name, version=version, awaited=awaited)})

    def ready(self, model: Model) -> Model | None:
        """Puts a loaded version into service, from one request to the next.

        Returns:
            The model that was in its place.
        """
        name, version = model.signature.name, model.signature.version
        slot = self._slots[name][version]
        ready = replace(slot, state=State.READY, reason="", model=model)
        self._put(name, {**self._slots[name], version: ready})
        return slot.model

    def keep(self, name: str, version: int, reason: str) -> None:
        """Says why a version is still served as it was."""
        slot = replace(self._slots[name][version], reason=reason)
        self._put(name, {**self._slots[name], version: slot})

    def forget(self, name: str, version: int) -> Model | None:
        """Takes a version out of service, as if it had never been there.

        Returns:
            The model that was in service.
        """
        versions = dict(self._slots.get(name, {}))
        slot = versions.pop(version, None)
        self._put(name, versions)
        return None if slot is None else slot.model

    def fail(self, name: str, version: int, reason: str) -> None:
        """Says why a version is not served."""
        versions = self._slots.get(name, {})
        slot = versions.get(version) or Slot(name=name, version=version)
        failed = replace(slot, state=State.UNAVAILABLE, reason=reason, model=None)
        self._put(name, {**versions, version: failed})

    def reason(self, name: str, version: int) -> str:
        """Why a version is not served; empty where that is not known, or it is."""
        slot = self._slots.get(name, {}).get(version)
        return "" if slot is None else slot.reason

    def names(self) -> list[str]:
        """The names of all models, ready or not."""
        return sorted(self._slots)

    def versions(self, name: str) -> list[int]:
        """The versions of a model that are ready, oldest first."""
        return sorted(slot.version for slot in self._slots.get(name, {}).values() if slot.model is not None)

    def slots(self) -> Iterator[Slot]:
        """Every version of every model, by name and version."""
        for name in self.names():
            yield from (slot for _, slot in sorted(self._slots[name].items()))

    def models(self) -> list[Model]:
        """Every version that is ready."""
        return [slot.model for slot in self.slots() if slot.model is not None]

    def is_ready(self, name: str) -> bool:
        """The version that an unversioned request gets is ready."""
        versions = self._slots.get(name)
        return versions is not None and self._default(versions).state is State.READY

    def slot(self, name: str, version: str = "") -> Slot:
        """Finds a version in any state.

        Args:
            name: The model's name.
            version: A number; empty for the newest version that did not fail to load.

        Raises:
            InvalidRequestError: The version is no number.
            UnknownModelError: There is no such model or version.
        """
        versions = self._slots.get(name)
        if versions is None:
            raise UnknownModelError(
                f"model {quoted(name)} is not served here; there are {listed(self.names())}"
            )
        if not version:
            return self._default(versions)
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", version):
            raise InvalidRequestError(
                "model_version must be a number without sign or leading zeros, such as 1, or empty for the "
                f"newest, was {quoted(version)}"
            )
        slot = versions.get(int(version))
        if slot is None:
            raise UnknownModelError(
                f"model {name} has no version {int(version)}; it has {listed(sorted(versions))}"
            )
        return slot

    def find(self, name: str, version: str = "") -> Model:
        """Finds a version that is ready.

        Raises:
            InvalidRequestError: The version is no number.
            UnknownModelError: There is no such model or version.
            UnavailableError: It is not ready.
        """
        slot = self.slot(name, version)
        if slot.model is not None:
            return slot.model
        if slot.state is State.LOADING:
            raise UnavailableError(
                f"model {name} is loading: try again later, or wait until its health is SERVING",
                retry_after_ms=_LOADING_RETRY_MS,
            )
        raise UnavailableError(f"model {name} cannot be served: {slot.reason}", retry_after_ms=None)

    def _put(self, name: str, versions: Mapping[int, Slot]) -> None:
        """Replace the versions of a model; a thread that looks for one sees the old ones or the new."""
        others = {key: value for key, value in self._slots.items() if key != name}
        self._slots = {**others, name: versions} if versions else others
        self.changes += 1
        self.on_change()

    @staticmethod
    def _default(versions: Mapping[int, Slot]) -> Slot:
        sound = [
            version
            for version, slot in versions.items()
            if slot.model is not None or (slot.state is State.LOADING and slot.awaited)
        ]
        return versions[max(sound or versions)]
