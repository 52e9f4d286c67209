"""What is served follows the repository: with stand-ins for sessions and schedulers."""

import asyncio
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from polyhead_server.errors import NotLoadedError, StartError, UnavailableError, UnknownModelError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository import VersionFolder, scan
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.loading import Failed, Loaded
from polyhead_server.serving.reconciler import Reconciler, look
from polyhead_server.serving.registry import Model, Registry, State


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

    def __init__(
        self, source: Path, folder: Path, policy: Literal["latest", "all"] = "latest", patience: float = 30.0
    ) -> None:
        self.source = source
        self.models = folder
        self.registry = Registry()
        self.loads: list[int] = []
        self.engines: dict[str, FakeEngine] = {}
        self.broken: dict[str, str] = {}
        self.retired: list[Model] = []
        self.hold = threading.Event()
        self.hold.set()
        self.begun = threading.Semaphore(0)
        self.reconciler = Reconciler(
            folder,
            policy=policy,
            registry=self.registry,
            load=self.load,
            build=self.build,
            retired=self.retired.append,
            look_seconds=patience,
            load_seconds=patience,
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

    def load(self, version: VersionFolder) -> Iterator[Loaded | Failed]:
        self.begun.release()
        assert self.hold.wait(30)
        self.loads.append(version.version)
        for graph in version.manifest.graphs:
            signature = signature_of(version.manifest, graph)
            if reason := self.broken.get(f"{signature.name} {version.version}"):
                may_pass = "No space" in reason
                yield Failed(name=signature.name, version=version.version, reason=reason, may_pass=may_pass)
            else:
                yield Loaded(
                    signature=signature,
                    engine=cast(Any, self.engine(signature.name, version.version)),
                    costs=cast(Any, None),
                    single_thread=None,
                    tokeniser=None,
                )

    def build(self, loaded: Loaded) -> Model:
        return Model(
            signature=loaded.signature,
            scheduler=cast(Any, FakeScheduler(loaded.signature.manifest.digest)),
            tokeniser=None,
            provider="CPU",
            close=loaded.close,
        )

    def engine(self, name: str, version: int) -> FakeEngine:
        self.engines[f"{name} {version}"] = engine = FakeEngine()
        return engine

    async def start(self) -> None:
        found = scan(self.models, may_be_empty=True)
        self.reconciler.declare(found)
        await self.reconciler.reconcile(found)

    def serving(self) -> dict[str, list[int]]:
        """Versions in service, by model."""
        return {
            name: versions for name in self.registry.names() if (versions := self.registry.versions(name))
        }

    def index(self) -> list[tuple[str, int, str, str]]:
        return [(slot.name, slot.version, slot.state, slot.reason) for slot in self.registry.slots()]

    def parameters(self, name: str = "a") -> int | None:
        return self.registry.find(name).signature.manifest.numbers.parameters


Run = Callable[..., None]


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Run:
    def play(story: Callable[[World], Awaitable[None]], policy: Literal["latest", "all"] = "latest") -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                await story(World(repository / "tiny" / "1", tmp_path, policy))

        asyncio.run(main())

    return play


def test_the_newest_version_is_served(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.write(3)
        await world.start()

        assert world.serving() == {"a": [3], "a.attention": [3]}
        assert world.loads == [3]

    run(story)


def test_all_versions_are_served_where_that_is_wanted(run: Run) -> None:
    async def story(world: World) -> None:
        for version in (1, 2, 10):
            world.write(version)
        await world.start()
        world.remove(2)
        await world.reconciler.reconcile(patient=False)

        assert world.serving() == {"a": [1, 10], "a.attention": [1, 10]}

    run(story, "all")


def test_an_older_version_is_loaded_where_the_newest_cannot_be(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.write(2)
        world.write(3)
        (world.models / "a" / "3" / "manifest.json").write_text("{")
        world.broken = {"a 2": "bad", "a.attention 2": "bad"}
        await world.start()

        assert world.serving() == {"a": [1], "a.attention": [1]}
        assert world.index()[:3] == [
            ("a", 1, State.READY, ""),
            ("a", 2, State.UNAVAILABLE, "bad"),
            ("a", 3, State.UNAVAILABLE, "manifest.json is not valid JSON"),
        ]

    run(story)


def test_at_the_start_one_graph_is_better_than_none(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.broken = {"a.attention 1": "bad"}
        await world.start()

        assert world.serving() == {"a": [1]}

    run(story)


def test_nothing_is_loaded_twice(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.write(2)
        world.broken = {"a 2": "bad", "a.attention 2": "bad"}
        await world.start()
        for _ in range(3):
            await world.reconciler.reconcile()

        assert sorted(world.loads) == [1, 2]

    run(story)


def test_a_new_version_takes_over_when_it_is_loaded_and_the_old_one_leaves_after_its_last_answer(
    run: Run,
) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        old = world.registry.find("a")
        world.write(2)
        world.hold.clear()
        coming = asyncio.ensure_future(world.reconciler.reconcile())
        await asyncio.to_thread(world.begun.acquire)
        await asyncio.to_thread(world.begun.acquire)
        assert world.registry.find("a") is old

        with old.lease:
            world.hold.set()
            await coming
            new = world.registry.find("a")
            assert (new.signature.version, world.serving()) == (2, {"a": [2], "a.attention": [2]})
            with pytest.raises(UnknownModelError, match="no version 1; it has 2"):
                world.registry.find("a", "1")
            await asyncio.sleep(0)
            assert not cast(Any, old.scheduler).closed
        await asyncio.sleep(0)
        assert cast(Any, old.scheduler).closed
        assert old in world.retired
        assert not cast(Any, new.scheduler).closed
        assert await asyncio.to_thread(world.engines["a 1"].closed.wait, 30)
        assert not world.engines["a 2"].closed.is_set()

    run(story)


def test_a_version_that_changes_is_taken_over_as_a_whole(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1, parameters=10)
        await world.start()
        world.write(1, parameters=20)
        await world.reconciler.reconcile()

        assert world.parameters("a") == world.parameters("a.attention") == 20
        assert len(world.retired) == 2
        assert world.loads == [1, 1]

    run(story)


@pytest.mark.parametrize("graph", ["a", "a.attention"])
def test_a_change_that_cannot_be_loaded_leaves_the_old_and_says_why(run: Run, graph: str) -> None:
    async def story(world: World) -> None:
        world.write(1, parameters=10)
        await world.start()
        world.broken = {f"{graph} 1": "weights.bin is missing"}
        world.write(1, parameters=20)
        for _ in range(2):
            await world.reconciler.reconcile()

        assert world.parameters("a") == world.parameters("a.attention") == 10
        kept = "the files have changed and cannot be served: weights.bin is missing; it is served as before"
        assert world.index() == [("a", 1, State.READY, kept), ("a.attention", 1, State.READY, kept)]
        assert world.loads == [1, 1]

        world.broken = {}
        world.write(1, parameters=30)
        await world.reconciler.reconcile()
        assert world.parameters() == 30
        assert {reason for *_, reason in world.index()} == {""}

    run(story)


def test_a_manifest_that_breaks_leaves_the_old_until_it_is_whole_again(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1, parameters=10)
        await world.start()
        manifest = world.models / "a" / "1" / "manifest.json"
        whole = manifest.read_text()
        manifest.write_text(whole[:100])
        await world.reconciler.reconcile()
        assert "manifest.json is not valid JSON" in world.index()[0][3]
        assert world.parameters() == 10
        manifest.write_text(whole)
        await world.reconciler.reconcile()

        assert {reason for *_, reason in world.index()} == {""}
        assert world.loads == [1]

    run(story)


def test_a_newer_version_that_cannot_be_loaded_leaves_the_old(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        world.broken = {"a.attention 2": "bad"}
        world.write(2)
        await world.reconciler.reconcile()

        assert world.serving() == {"a": [1], "a.attention": [1]}
        assert ("a.attention", 2, State.UNAVAILABLE, "bad") in world.index()
        assert world.registry.find("a.attention").signature.version == 1

    run(story)


def test_files_that_arrive_later_are_tried_again(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.broken = {"a 1": "weights.bin is missing", "a.attention 1": "weights.bin is missing"}
        (world.models / "a" / "1" / "weights.bin").rename(world.models / "later")
        await world.start()
        await world.reconciler.reconcile()
        assert world.loads == [1]
        world.broken = {}
        (world.models / "later").rename(world.models / "a" / "1" / "weights.bin")
        await world.reconciler.reconcile()

        assert world.serving() == {"a": [1], "a.attention": [1]}

    run(story)


def test_what_there_was_no_room_for_is_tried_again(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.broken = {"a 1": "No space left on device", "a.attention 1": "No space left on device"}
        await world.start()
        assert world.serving() == {}
        world.broken = {}
        await world.reconciler.reconcile()

        assert world.serving() == {"a": [1], "a.attention": [1]}

    run(story)


def test_what_is_gone_for_a_moment_is_not_taken_away(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        (world.models / "a" / "1").rename(world.models / "away")
        await world.reconciler.reconcile()
        assert world.serving() == {"a": [1], "a.attention": [1]}
        (world.models / "away").rename(world.models / "a" / "1")
        await world.reconciler.reconcile()
        (world.models / "a" / "1").rename(world.models / "away")
        await world.reconciler.reconcile()
        assert world.serving() == {"a": [1], "a.attention": [1]}
        assert world.loads == [1]

        await world.reconciler.reconcile()
        assert world.serving() == {}
        assert len(world.retired) == 2

    run(story)


def test_when_the_newest_is_removed_the_older_one_is_back_before_it_goes(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        world.write(2)
        await world.start()
        world.remove(2)
        await world.reconciler.reconcile()
        world.hold.clear()
        going = asyncio.ensure_future(world.reconciler.reconcile())
        await asyncio.to_thread(world.begun.acquire)
        await asyncio.to_thread(world.begun.acquire)
        assert world.registry.find("a").signature.version == 2
        world.hold.set()
        await going

        assert world.serving() == {"a": [1], "a.attention": [1]}

    run(story)


def test_a_family_that_is_removed_is_unknown(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        shutil.rmtree(world.models / "a")
        for _ in range(2):
            await world.reconciler.reconcile()

        assert world.index() == []
        with pytest.raises(UnknownModelError):
            world.registry.find("a")

    run(story)


def test_models_are_loaded_and_unloaded_when_that_is_said(run: Run) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.write(1)
        await world.reconciler.load("a")
        assert world.serving() == {"a": [1], "a.attention": [1]}
        await world.reconciler.unload("a")
        with pytest.raises(UnavailableError, match="model a cannot be served: it was unloaded"):
            world.registry.find("a")
        assert len(world.retired) == 2
        await world.reconciler.unload("a")
        await world.reconciler.load("a")

        assert world.serving() == {"a": [1], "a.attention": [1]}
        assert {reason for *_, reason in world.index()} == {""}

    run(story)


def test_a_load_that_fails_says_why_and_what_is_served_still(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        world.write(2)
        world.broken = {"a 2": "model.onnx is missing"}
        for _ in range(2):  # a caller's word is enough to try again
            with pytest.raises(
                NotLoadedError,
                match=r"a could not be loaded .* \(version 1 is served\): version 2: model.onnx is missing",
            ):
                await world.reconciler.load("a")
        assert world.loads == [1, 2, 2]
        assert world.serving() == {"a": [1], "a.attention": [1]}

    run(story)


@pytest.mark.parametrize("name", ["b", "", "../a", "/etc", "a/1", ".", "a.attention", "a\0"])
def test_only_families_of_the_repository_are_loaded(run: Run, name: str) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        with pytest.raises(UnknownModelError, match="is no family"):
            await world.reconciler.load(name)
        with pytest.raises(UnknownModelError, match="is no family"):
            await world.reconciler.unload(name)
        assert world.serving() == {"a": [1], "a.attention": [1]}

    run(story)


def test_a_close_ends_what_is_still_in_use(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        old = world.registry.find("a")
        with old.lease:
            world.write(2)
            await world.reconciler.reconcile()
            await world.reconciler.close()
            assert cast(Any, old.scheduler).closed
        await world.reconciler.close()

    run(story)


def test_what_was_loaded_of_a_version_that_is_refused_is_closed(run: Run) -> None:
    async def story(world: World) -> None:
        world.write(1)
        await world.start()
        world.write(2)
        world.broken["a.attention 2"] = "it is broken"
        await world.reconciler.reconcile()

        assert world.serving() == {"a": [1], "a.attention": [1]}
        assert world.engines["a 2"].closed.is_set()
        assert not world.engines["a 1"].closed.is_set()

    run(story)


class DeadFileSystem:
    """A folder below which nothing answers until it is mended.

    Args:
        patch: For `os.scandir` and `os.listdir`, through which folders are looked at.
        folder: The folder.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.looks = 0
        self._mended = threading.Event()
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, partial(self._look, folder, getattr(os, name)))

    def _look(self, dead: Path, real: Callable[..., Any], path: Any = ".") -> Any:
        if Path(path) == dead:
            self.looks += 1
            assert self._mended.wait(60)
        return real(path)

    def mend(self) -> None:
        """Has it answer from now on."""
        self._mended.set()


def write_to(world: World, family: str) -> None:
    """Puts version 1 of another family in place."""
    world.write(1)
    (world.models / "a").rename(world.models / family)
    manifest = world.models / family / "1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name": "a",', f'"name": "{family}",', 1))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - threads change it
        await asyncio.sleep(0.01)


def test_a_family_whose_files_do_not_answer_holds_up_no_other(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        world = World(repository / "tiny" / "1", tmp_path, patience=2.0)
        await world.start()
        write_to(world, "a-dead")
        world.write(1)
        dead = DeadFileSystem(monkeypatch, tmp_path / "a-dead")
        for _ in range(3):
            await world.reconciler.reconcile()

        assert world.serving() == {"a": [1], "a.attention": [1]}
        assert dead.looks == 1  # and so one thread, however long it lasts
        assert caplog.text.count("a-dead is still being looked at") == 1
        for order in (world.reconciler.load, world.reconciler.unload):
            with pytest.raises(
                UnavailableError, match="a-dead is still being looked at or loaded: try again"
            ):
                await order("a-dead")
        await world.reconciler.load("a")

        dead.mend()
        await until(lambda: not world.reconciler.busy)
        await world.reconciler.reconcile()
        assert world.serving()["a-dead"] == [1]

    monkeypatch.setattr(LOGGER, "propagate", True)
    asyncio.run(story())


def test_a_load_that_hangs_holds_up_no_other(repository: Path, tmp_path: Path) -> None:
    async def story() -> None:
        world = World(repository / "tiny" / "1", tmp_path, patience=2.0)
        write_to(world, "b")
        world.hold.clear()
        await world.start()
        waiting = asyncio.ensure_future(world.reconciler.wait_for_any())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert world.index()[0][2] is State.LOADING
        world.hold.set()
        await waiting
        await until(lambda: not world.reconciler.busy)

        assert world.serving() == {"b": [1], "b.attention": [1]}

    asyncio.run(story())


def test_a_repository_that_does_not_answer_leaves_what_is_served_and_is_followed_again(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world = World(repository / "tiny" / "1", tmp_path, patience=2.0)
        world.write(1)
        await world.start()
        dead = DeadFileSystem(monkeypatch, tmp_path)
        watching = asyncio.ensure_future(world.reconciler.watch(0.01))
        await until(lambda: bool(dead.looks))
        await asyncio.sleep(3)
        assert dead.looks == 1
        assert world.serving() == {"a": [1], "a.attention": [1]}
        world.write(2)
        dead.mend()
        await until(lambda: world.serving() == {"a": [2], "a.attention": [2]})
        watching.cancel()

    asyncio.run(story())


def test_at_the_start_what_does_not_answer_is_left_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world = World(repository / "tiny" / "1", tmp_path)
        world.write(1)
        write_to(world, "b")
        world.write(1)
        with monkeypatch.context() as patch:
            dead = DeadFileSystem(patch, tmp_path / "a")
            versions, broken = await look(tmp_path, may_be_empty=False, seconds=0.2)
            dead.mend()
        assert [one.family for one in versions] == ["b"]
        assert [(one.family, one.reason) for one in broken] == [
            ("a", "its folder cannot be read: it did not answer within 0.2 s")
        ]
        dead = DeadFileSystem(monkeypatch, tmp_path)
        with pytest.raises(
            StartError, match=r"must be a folder that can be read, .*: it did not answer within"
        ):
            await look(tmp_path, may_be_empty=False, seconds=0.2)
        dead.mend()

    asyncio.run(story())


@pytest.mark.parametrize("length", [255, 256, 10**6])
def test_orders_for_names_without_end_leave_nothing_behind(run: Run, length: int) -> None:
    async def story(world: World) -> None:
        await world.start()
        for letter in "xyz":
            with pytest.raises(UnknownModelError, match="is no family") as caught:
                await world.reconciler.load(letter * length)
            assert len(str(caught.value)) < 200

        assert world.index() == []

    run(story)
