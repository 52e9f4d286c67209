"""What the tests of the accept queue share."""

import threading
from collections.abc import Iterator

import pytest

_others: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _note_other_threads() -> Iterator[None]:
    """Servers of other tests may still run in this process."""
    _others.update(threading.enumerate())
    yield
    _others.clear()


def accept_threads() -> list[str]:
    """The polling threads that this test has started, and that run."""
    return [each.name for each in threading.enumerate() if each.name == "accept" and each not in _others]
