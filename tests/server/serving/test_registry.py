"""Finding models by name and version."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from polyhead_server.engine.devices import on_cpu
from polyhead_server.errors import InvalidRequestError, UnavailableError, UnknownModelError
from polyhead_server.observability.statistics import Statistics
from polyhead_server.serving.registry import Model, ModelState, Registry


def model(name: str, version: int) -> Model:
    signature = SimpleNamespace(name=name, version=version)
    return Model(
        signature=cast(Any, signature),
        scheduler=cast(Any, None),
        lanes=cast(Any, None),
        device=on_cpu(""),
        statistics=Statistics(name, version),
    )


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for version in (1, 2, 10):
        registry.declare("a", version)
    registry.ready(model("a", 1))
    registry.ready(model("a", 2))
    return registry


def version(found: Model) -> int:
    return found.signature.version


def test_without_a_version_the_newest_by_number_counts(registry: Registry) -> None:
    registry.ready(model("a", 10))

    assert version(registry.find("a")) == 10


def test_while_the_newest_loads_no_older_one_stands_in(registry: Registry) -> None:
    with pytest.raises(UnavailableError, match="model a is loading") as caught:
        registry.find("a")

    assert caught.value.retry_after_ms
    assert not registry.is_ready("a")


def test_an_older_version_stands_in_for_a_newest_that_failed(registry: Registry) -> None:
    registry.fail("a", 10, "it is broken")

    assert version(registry.find("a")) == 2
    assert registry.is_ready("a")
    with pytest.raises(UnavailableError, match="model a cannot be served: it is broken") as caught:
        registry.find("a", "10")
    assert caught.value.retry_after_ms is None


def test_while_a_newer_one_loads_at_work_the_older_serves() -> None:
    registry = Registry()
    registry.declare("a", 1)
    registry.ready(model("a", 1))
    registry.declare("a", 2)

    assert version(registry.find("a")) == 1
    assert registry.is_ready("a")
    assert registry.ready(model("a", 2)) is None
    assert version(registry.find("a")) == 2


def test_what_is_forgotten_is_unknown(registry: Registry) -> None:
    found = registry.find("a", "1")

    assert registry.forget("a", 1) is found
    assert registry.forget("a", 1) is None
    with pytest.raises(UnknownModelError, match="no version 1; it has 2, 10"):
        registry.find("a", "1")
    for number in (2, 10):
        registry.forget("a", number)
    assert registry.names() == []


def test_what_is_not_there_is_unknown(registry: Registry) -> None:
    with pytest.raises(UnknownModelError, match="model 'b' is not served here; there are a"):
        registry.find("b")
    registry.declare("a.attention", 2)
    registry.declare("c.attention", 1)
    with pytest.raises(UnknownModelError, match=r"model 'b\.rows' is not served here; there are a, c$"):
        registry.find("b.rows")
    with pytest.raises(
        UnknownModelError, match=r"model 'a\.rows' is not served here; of a, there are a, a\.attention$"
    ):
        registry.find("a.rows")
    with pytest.raises(UnknownModelError, match="model a has no version 3; it has 1, 2, 10"):
        registry.find("a", "3")
    for text in ("abc", "-1", "+1", "01", "00", "1.0", "1\n", "٣", " 1", "9" * 30):
        with pytest.raises(InvalidRequestError, match="model_version must be a number without sign or"):
            registry.find("a", text)


def test_a_reader_in_another_thread_is_not_disturbed_by_changes(registry: Registry) -> None:
    slots = registry.slots()
    first = next(slots)
    registry.fail("b", 1, "it is broken")
    registry.forget("a", 2)
    registry.ready(model("a", 10))

    assert [(slot.version, slot.state) for slot in (first, *slots)] == [
        (1, ModelState.READY),
        (2, ModelState.READY),
        (10, ModelState.LOADING),
    ]


# ---- Leases ------------------------------------------------------------------------------------


def test_every_change_is_reported() -> None:
    changes: list[str] = []
    registry = Registry(lambda: changes.append("changed"))
    registry.declare("a", 1)
    registry.ready(model("a", 1))
    registry.fail("a", 1, "gone")

    assert len(changes) == 3
