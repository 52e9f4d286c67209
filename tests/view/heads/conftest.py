"""A server of a small encoder with an insight graph."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import quick_settings, serving_many


@pytest.fixture(scope="session")
def insight_server(probed_models: Path) -> Iterator[str]:
    """The address of a server of `probed` alone, with all that it needs for a survey."""
    with serving_many(quick_settings(probed_models)) as address:
        yield address
