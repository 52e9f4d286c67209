"""The explorer's page over a client without a server."""

import pytest
from starlette.testclient import TestClient
from tests.view.explorer.fake import FakeClient

from polyhead_view.explorer.app import create_page
from polyhead_view.explorer.explorer import Explorer


@pytest.fixture
def words() -> FakeClient:
    """The client of a made-up server."""
    return FakeClient()


@pytest.fixture
def page(words: FakeClient) -> TestClient:
    """A browser's requests."""
    return TestClient(
        create_page(Explorer(words.as_client, address="host:1")), base_url="http://127.0.0.1:8003"
    )
