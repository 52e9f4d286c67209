"""Versions are loaded, replaced as a whole and retired."""

import asyncio
import inspect
import logging
import threading
from typing import Any, cast

import pytest
from tests.server.serving.world import World
from tests.waiting import reached

from polyhead_server.errors import DeviceError, DownloadError, UnknownModelError
from polyhead_server.serving.registry import ModelState


async def test_the_newest_version_is_served(world: World) -> None:
    world.write(1)
    world.write(3)
    await world.start()

    assert world.serving() == {"a": [3], "a.attention": [3]}
    assert world.loads == [3]


@pytest.mark.parametrize("world", ["all"], indirect=True)
async def test_all_versions_are_served_where_that_is_wanted(world: World) -> None:
    for version in (1, 2, 10):
        world.write(version)
    await world.start()
    world.remove(2)
    for _ in range(2):
        await world.reconciler.reconcile()

    assert world.serving() == {"a": [1, 10], "a.attention": [1, 10]}


async def test_an_older_version_is_loaded_where_the_newest_cannot_be(world: World) -> None:
    world.write(1)
    world.write(2)
    world.write(3)
    (world.models / "a" / "3" / "manifest.json").write_text("{")
    world.broken = {"a 2": "bad", "a.attention 2": "bad"}
    await world.start()

    assert world.serving() == {"a": [1], "a.attention": [1]}
    assert world.index()[:3] == [
        ("a", 1, ModelState.READY, ""),
        ("a", 2, ModelState.UNAVAILABLE, "bad"),
        ("a", 3, ModelState.UNAVAILABLE, "manifest.json is not valid JSON"),
    ]


async def test_at_the_start_one_graph_is_better_than_none(world: World) -> None:
    world.write(1)
    world.broken = {"a.attention 1": "bad"}
    await world.start()

    assert world.serving() == {"a": [1]}


async def test_at_the_start_a_graph_does_not_wait_for_the_others(world: World) -> None:
    world.write(1)
    world.held["a.attention"] = held = threading.Event()
    starting = asyncio.ensure_future(world.start())
    await reached(lambda: world.serving() == {"a": [1]})
    assert world.index()[1] == ("a.attention", 1, ModelState.LOADING, "")
    first = world.registry.find("a")
    held.set()
    await starting

    assert world.serving() == {"a": [1], "a.attention": [1]}
    assert world.registry.find("a") is first
    assert world.retired == []
    world.remove(1)
    for _ in range(2):
        await world.reconciler.reconcile()
    assert len(world.retired) == 2


async def test_a_new_version_takes_over_when_it_is_loaded_and_the_old_one_leaves_after_its_last_answer(
    world: World,
) -> None:
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
    assert await asyncio.to_thread(world.engines["a 1"].closed.wait, 120)
    assert not world.engines["a 2"].closed.is_set()


async def test_a_version_that_changes_is_taken_over_as_a_whole(world: World) -> None:
    world.write(1, parameters=10)
    await world.start()
    world.write(1, parameters=20)
    await world.reconciler.reconcile()

    assert world.parameters("a") == world.parameters("a.attention") == 20
    assert len(world.retired) == 2
    assert world.loads == [1, 1]


@pytest.mark.parametrize("graph", ["a", "a.attention"])
async def test_a_change_that_cannot_be_loaded_leaves_the_old_and_says_why(world: World, graph: str) -> None:
    world.write(1, parameters=10)
    await world.start()
    world.broken = {f"{graph} 1": "weights.bin is missing"}
    world.write(1, parameters=20)
    for _ in range(2):
        await world.reconciler.reconcile()

    assert world.parameters("a") == world.parameters("a.attention") == 10
    kept = "the files have changed and cannot be served: weights.bin is missing; it is served as before"
    assert world.index() == [("a", 1, ModelState.READY, kept), ("a.attention", 1, ModelState.READY, kept)]
    assert world.loads == [1, 1]

    world.broken = {}
    world.write(1, parameters=30)
    await world.reconciler.reconcile()
    assert world.parameters() == 30
    assert {reason for *_, reason in world.index()} == {""}


async def test_a_change_that_the_device_runs_in_part_is_taken_over_without_the_rest(world: World) -> None:
    world.write(1)
    await world.start()
    world.write(1, parameters=2)
    world.broken = {"a.attention 1": "left 1 Softmax to the CPU"}
    world.error = DeviceError("left 1 Softmax to the CPU")
    await world.reconciler.reconcile()

    assert world.serving() == {"a": [1]}
    assert world.index() == [
        ("a", 1, ModelState.READY, ""),
        ("a.attention", 1, ModelState.UNAVAILABLE, "left 1 Softmax to the CPU"),
    ]
    assert len(world.retired) == 2


async def test_a_manifest_that_breaks_leaves_the_old_until_it_is_whole_again(world: World) -> None:
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


async def test_a_newer_version_that_cannot_be_loaded_leaves_the_old(world: World) -> None:
    world.write(1)
    await world.start()
    world.broken = {"a.attention 2": "bad"}
    world.write(2)
    await world.reconciler.reconcile()

    assert world.serving() == {"a": [1], "a.attention": [1]}
    assert ("a.attention", 2, ModelState.UNAVAILABLE, "bad") in world.index()
    assert world.registry.find("a.attention").signature.version == 1
    assert world.engines["a 2"].closed.is_set()  # what was loaded of it
    assert not world.engines["a 1"].closed.is_set()


async def test_files_that_arrive_later_are_tried_again(world: World) -> None:
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


async def test_what_there_was_no_room_for_is_tried_again(world: World) -> None:
    world.write(1)
    world.broken = {"a 1": "No space left on device", "a.attention 1": "No space left on device"}
    await world.start()
    assert world.serving() == {}
    world.broken = {}
    await world.reconciler.reconcile()

    assert world.serving() == {"a": [1], "a.attention": [1]}


async def test_why_a_version_is_not_served_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def logged(*, polls: int = 3) -> list[str]:
        caplog.clear()
        for _ in range(polls):
            await world.reconciler.reconcile()
        return caplog.messages

    world.write(1)
    first, second = "No space left on device", "No space left for others"
    world.broken = {"a 1": first, "a.attention 1": first}
    await world.start()
    assert caplog.messages == [f"model a version 1 is not served: {first}"]
    assert await logged() == []
    world.broken = {"a 1": second, "a.attention 1": second}
    assert await logged() == [f"model a version 1 is not served: {second}"]
    world.broken = {}
    assert await logged() == ["a version 1 is ready"]


async def test_what_was_unforeseen_is_in_the_log_and_not_in_the_index(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(1)
    foreseen = DownloadError("it is wrong")
    foreseen.__cause__ = OSError("/another/secret")
    unforeseen = RuntimeError("/secret/path")
    for error, reason in (
        (foreseen, "it is wrong"),
        (unforeseen, "it could not be loaded; the server's log says why"),
    ):
        world.error, world.broken = error, {"a 1": "broken", "a.attention 1": "broken"}
        await world.reconciler.reconcile()
        assert [shown for *_, shown in world.index()] == [reason, reason]

    first, second = caplog.records
    assert first.getMessage().endswith("it is wrong (/another/secret)")
    assert first.exc_info is None
    assert second.exc_info
    assert second.exc_info[1] is world.error


async def test_when_the_newest_is_removed_the_older_one_is_back_before_it_goes(world: World) -> None:
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


async def test_a_close_ends_what_is_still_in_use(world: World) -> None:
    world.write(1)
    await world.start()
    old = world.registry.find("a")
    with old.lease:
        world.write(2)
        await world.reconciler.reconcile()
        await world.reconciler.close()
        assert cast(Any, old.scheduler).closed
    await world.reconciler.close()


async def test_a_load_that_is_called_off_is_closed(world: World) -> None:
    world.write(1)
    world.held["a"] = held = threading.Event()
    starting = asyncio.ensure_future(world.start())
    await reached(lambda: world.loads == [1])
    await world.reconciler.close()
    with pytest.raises(asyncio.CancelledError):
        await starting
    (results,) = world.results
    assert inspect.getgeneratorstate(results) == inspect.GEN_RUNNING

    held.set()

    await reached(lambda: inspect.getgeneratorstate(results) == inspect.GEN_CLOSED)
    await reached(world.engines["a 1"].closed.is_set)
