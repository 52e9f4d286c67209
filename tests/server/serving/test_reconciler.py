"""What is served follows the repository, by itself or by call, also where its file system does not answer."""

import asyncio

import pytest
from tests.server.serving.world import World

from polyhead_server.errors import NotLoadedError, UnavailableError, UnknownModelError
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


def write_to(world: World, family: str) -> None:
    """Puts version 1 of another family in place."""
    world.write(1)
    if family == "a":
        return
    (world.models / "a").rename(world.models / family)
    manifest = world.models / family / "1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name": "a",', f'"name": "{family}",', 1))
