"""A world for the tests of what is served."""

from pathlib import Path

import pytest
from tests.server.serving.world import World


@pytest.fixture
def world(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> World:
    """An empty repository, of which the newest versions are served, or those that a parameter says."""
    return World(repository / "tiny" / "1", tmp_path, getattr(request, "param", "latest"))
