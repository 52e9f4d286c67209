"""Simulations that need not be exact."""

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate less: how exact a simulation is has tests of its own."""
    monkeypatch.setattr("polyhead_load.fleet.model._REQUESTS", 500)
