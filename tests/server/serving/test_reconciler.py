"""What is served follows the repository, by itself or by call, also where its file system does not answer."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.clock import skip
from tests.server.serving.world import PATIENCE, World
from tests.waiting import reached

from polyhead_server.errors import NotLoadedError, StartError, UnavailableError, UnknownModelError
from polyhead_server.repository.scanning import Broken, VersionFolder
from polyhead_server.serving.reconciler import LOOK_SECONDS, look
from polyhead_server.serving.registry import ModelState


async def test_what_is_gone_for_a_moment_is_not_taken_away(world: World) -> None:
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


async def test_models_are_loaded_and_unloaded_when_that_is_said(world: World) -> None:
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


async def test_a_load_that_fails_says_why_and_what_is_served_still(world: World) -> None:
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


async def test_families_are_loaded_side_by_side_but_not_all_at_once(world: World) -> None:
    for family in ("b", "c", "a"):
        write_to(world, family)
    world.hold.clear()
    starting = asyncio.ensure_future(world.start())
    for _ in range(2):
        assert await asyncio.to_thread(world.begun.acquire)
    await asyncio.sleep(0.05)
    assert not world.begun.acquire(blocking=False)
    world.hold.set()
    await starting

    assert set(world.serving()) == {f"{family}{graph}" for family in "abc" for graph in ("", ".attention")}


async def test_a_bug_with_one_family_is_reported_when_the_others_are_served(world: World) -> None:
    for family in ("b", "c", "a"):
        write_to(world, family)
    world.bug = "a"
    with pytest.raises(RuntimeError, match="a bug"):
        await world.start()

    assert set(world.serving()) == {"b", "b.attention", "c", "c.attention"}


async def test_a_close_ends_the_loading_of_all_families(world: World) -> None:
    for family in ("b", "c", "a"):
        write_to(world, family)
    world.hold.clear()
    starting = asyncio.ensure_future(world.start())
    await asyncio.to_thread(world.begun.acquire)
    starting.cancel()
    await world.reconciler.close()
    world.hold.set()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert world.serving() == {}


NO_FAMILIES = ["b", "", "../a", "/etc", "a/1", ".", "a.attention", "a\0", "x" * 255, "x" * 256, "x" * 10**6]


@pytest.mark.parametrize("name", NO_FAMILIES, ids=lambda name: ascii(name[:20]))
async def test_only_families_of_the_repository_are_loaded(world: World, name: str) -> None:
    world.write(1)
    await world.start()
    for change in (world.reconciler.load, world.reconciler.unload):
        with pytest.raises(UnknownModelError, match="is no family") as caught:
            await change(name)
        assert len(str(caught.value)) < 200
    assert world.index() == [("a", 1, ModelState.READY, ""), ("a.attention", 1, ModelState.READY, "")]


# ---- File systems that do not answer -----------------------------------------------------------


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
            assert self._mended.wait(240)
        return real(path)

    def mend(self) -> None:
        """Has it answer from now on."""
        self._mended.set()


def write_to(world: World, family: str) -> None:
    """Puts version 1 of another family in place."""
    world.write(1)
    if family == "a":
        return
    (world.models / "a").rename(world.models / family)
    manifest = world.models / family / "1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name": "a",', f'"name": "{family}",', 1))


async def test_a_family_whose_files_do_not_answer_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await world.start()
    write_to(world, "a-dead")
    world.write(1)
    dead = DeadFileSystem(monkeypatch, world.models / "a-dead")
    following = asyncio.ensure_future(world.reconciler.reconcile())
    await reached(lambda: bool(dead.looks) and "a version 1 is ready" in caplog.text)
    await asyncio.sleep(0.01)  # in which the others are done
    skip(PATIENCE)
    await following
    for _ in range(2):
        await world.reconciler.reconcile()

    assert world.serving() == {"a": [1], "a.attention": [1]}
    assert dead.looks == 1  # and so one thread, however long it lasts
    assert caplog.text.count("a-dead is still being looked at") == 1
    for change in (world.reconciler.load, world.reconciler.unload):
        with pytest.raises(UnavailableError, match="a-dead is still being looked at or loaded: try again"):
            await change("a-dead")
    await world.reconciler.load("a")

    dead.mend()
    while "a-dead" not in world.serving():
        await world.reconciler.reconcile()


async def test_a_load_that_hangs_holds_up_no_other(world: World) -> None:
    write_to(world, "b")
    world.hold.clear()
    starting = asyncio.ensure_future(world.start())
    await asyncio.to_thread(world.begun.acquire)
    skip(PATIENCE)
    await starting
    waiting = asyncio.ensure_future(world.reconciler.wait_for_any())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert world.index()[0][2] is ModelState.LOADING
    world.hold.set()
    await waiting

    assert world.serving() == {"b": [1], "b.attention": [1]}


async def test_a_repository_that_does_not_answer_leaves_what_is_served_and_is_followed_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(1)
    await world.start()
    dead = DeadFileSystem(monkeypatch, world.models)
    watching = asyncio.ensure_future(world.reconciler.watch(0.01))
    await reached(lambda: bool(dead.looks))
    skip(PATIENCE)
    await reached(lambda: "the others are followed without it" in caplog.text)
    await asyncio.sleep(0.1)  # in which it would look again
    assert dead.looks == 1
    assert world.serving() == {"a": [1], "a.attention": [1]}
    world.write(2)
    dead.mend()
    await reached(lambda: world.serving() == {"a": [2], "a.attention": [2]})
    watching.cancel()


async def test_at_the_start_what_does_not_answer_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_to(world, "b")
    world.write(1)
    with monkeypatch.context() as patch:
        dead = DeadFileSystem(patch, world.models / "a")
        looking = asyncio.ensure_future(look(world.models, may_be_empty=False))
        await reached(lambda: bool(dead.looks))
        skip(LOOK_SECONDS)
        silent, found = await looking
        dead.mend()
    reason = "its folder cannot be read: it did not answer within 10 s"
    assert silent == Broken(family="a", version=0, reason=reason)
    assert isinstance(found, VersionFolder)
    assert found.family == "b"
    dead = DeadFileSystem(monkeypatch, world.models)
    looking = asyncio.ensure_future(look(world.models, may_be_empty=False))
    await reached(lambda: bool(dead.looks))
    skip(LOOK_SECONDS)
    with pytest.raises(StartError, match=r"must be a folder that can be read, .*: it did not answer within"):
        await looking
    dead.mend()
