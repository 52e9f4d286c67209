"""The servers of the client's tests, which pictures are fetched from, too."""

from tests.client.conftest import fake, real_server, start_fake

__all__ = ["fake", "real_server", "start_fake"]
