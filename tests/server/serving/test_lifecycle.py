"""Readiness, and the count of accepted requests."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polyhead_server.engine.devices import on_cpu
from polyhead_server.errors import UnavailableError
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.registry import Model, Registry


def lifecycle(*names: str, on_change: Callable[[], None] = lambda: None) -> Lifecycle:
    registry = Registry()
    for name in names:
        registry.declare(name, 1)
        signature = cast(Any, SimpleNamespace(name=name, version=1))
        registry.ready(
            Model(signature=signature, scheduler=cast(Any, None), tokeniser=None, device=on_cpu(""))
        )
    registry.fail("broken", 1, "it is broken")
    return Lifecycle(registry, on_change)


def test_ready_is_loaded_with_a_model_and_not_draining() -> None:
    one = lifecycle("a")
    seen = [one.ready]
    one.finish_loading()
    seen.append(one.ready)
    one.drain()
    seen.append(one.ready)

    assert seen == [False, True, False]


def test_without_a_model_it_is_never_ready() -> None:
    one = lifecycle()
    one.finish_loading()
    assert not one.ready


def test_it_is_idle_when_every_accepted_request_has_left() -> None:
    async def test() -> None:
        one = lifecycle("a")
        await one.wait_until_idle()
        with one.accept():
            with one.accept():
                assert one.accepted == 2
            waiting = asyncio.create_task(one.wait_until_idle())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert one.accepted == 0

    asyncio.run(test())


def test_while_it_drains_nothing_is_accepted() -> None:
    one = lifecycle("a")
    one.drain()
    with pytest.raises(UnavailableError, match="draining") as caught, one.accept():
        pass
    assert caught.value.retry_after_ms
    assert one.accepted == 0


def test_without_its_device_it_is_not_ready_and_accepts_nothing() -> None:
    seen: list[bool] = []
    one = lifecycle("a", on_change=lambda: seen.append(one.ready))
    one.finish_loading()
    one.lose_device()

    assert seen == [True, False]
    assert one.lost.is_set()
    with pytest.raises(UnavailableError), one.accept():
        pass
