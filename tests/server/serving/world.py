"""A repository and a reconciler of it, with stand-ins for sessions and schedulers."""

import shutil
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from polyhead_server.engine.devices import on_cpu
from polyhead_server.errors import DownloadError, RepositoryError
from polyhead_server.observability.statistics import Statistics
from polyhead_server.repository.scanning import VersionFolder
from polyhead_server.repository.signature import signature_of
from polyhead_server.scheduling import Lanes
from polyhead_server.serving.loading import Failed, Loaded
from polyhead_server.serving.reconciler import Policy, Reconciler
from polyhead_server.serving.registry import Model, Registry


class FakeScheduler:
    """Remembers which manifest it came from, and that it was closed."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Remembers that it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class World:
    """A repository of the family `a`, and a reconciler of it."""

    def __init__(self, source: Path, folder: Path, policy: Policy = "latest") -> None:
        self.source = source
        self.models = folder
        self.registry = Registry()
        self.loads: list[int] = []
        self.results: list[Generator[Loaded | Failed]] = []
        """Of each load; held here, so that only an explicit close ends one."""
        self.engines: dict[str, FakeEngine] = {}
        self.broken: dict[str, str] = {}
        self.error: Exception | None = None
        """What has broken them; None: an error with the reason, which may pass for want of space."""
        self.retired: list[Model] = []
        self.held: dict[str, threading.Event] = {}
        """Graphs whose load waits."""
        self.hold = threading.Event()
        self.hold.set()
        self.begun = threading.Semaphore(0)
        self.reconciler = Reconciler(
            models=folder,
            registry=self.registry,
            policy=policy,
            loads=self.load,
            build=self.build,
            retired=self.retired.append,
            side_by_side=2,
        )

    def write(self, version: int, parameters: int = 1) -> None:
        """Puts a version in place, as export does: all of it at once."""
        staged = self.models / f".a-{version}"
        shutil.copytree(self.source, staged)
        manifest = staged / "manifest.json"
        text = manifest.read_text().replace('"name": "tiny",', '"name": "a",', 1)
        text = text.replace('"version": 1,', f'"version": {version},', 1)
        head, mark, tail = text.partition('"parameters": ')
        manifest.write_text(head + mark + str(parameters) + tail.lstrip("0123456789"))
        target = self.models / "a" / str(version)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)

    def remove(self, version: int) -> None:
        shutil.rmtree(self.models / "a" / str(version))

    def load(self, version: VersionFolder) -> Generator[Loaded | Failed]:
        self.results.append(self._load(version))
        return self.results[-1]

    def _load(self, version: VersionFolder) -> Generator[Loaded | Failed]:
        self.begun.release()
        assert self.hold.wait(240)
        self.loads.append(version.version)
        for graph in version.manifest.graphs:
            signature = signature_of(version.manifest, graph)
            if held := self.held.get(signature.name):
                assert held.wait(240)
            if reason := self.broken.get(f"{signature.name} {version.version}"):
                kind = DownloadError if "No space" in reason else RepositoryError
                error = self.error or kind(reason)
                yield Failed(name=signature.name, version=version.version, error=error)
            else:
                yield Loaded(
                    signature=signature,
                    lanes=Lanes(
                        engine=cast(Any, self.engine(signature.name, version.version)),
                        costs=cast(Any, None),
                    ),
                )

    def build(self, loaded: Loaded) -> Model:
        return Model(
            **vars(loaded),
            scheduler=cast(Any, FakeScheduler(loaded.signature.manifest.digest)),
            device=on_cpu(""),
            statistics=Statistics(loaded.signature.name, loaded.signature.version),
        )

    def engine(self, name: str, version: int) -> FakeEngine:
        self.engines[f"{name} {version}"] = engine = FakeEngine()
        return engine

    async def start(self) -> None:
        await self.reconciler.reconcile(await self.reconciler.look(may_be_empty=True))

    def serving(self) -> dict[str, list[int]]:
        """Versions in service, by model."""
        return {
            name: versions for name in self.registry.names() if (versions := self.registry.versions(name))
        }

    def index(self) -> list[tuple[str, int, str, str]]:
        return [(slot.name, slot.version, slot.state, slot.reason) for slot in self.registry.slots()]

    def parameters(self, name: str = "a") -> int | None:
        return self.registry.find(name).signature.manifest.parameters
