"""The client's fake server, which the commands call, too."""

from tests.client.conftest import fake

__all__ = ["fake"]
