"""Logging: one line an event, on standard error."""

import logging
import time

LOGGER = logging.getLogger("polyhead.server")
"""The server's logger; every module uses it."""


def configure(level: str) -> None:
    """Sends the server's messages of at least this level (`info`, …) to standard error, times in UTC."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(level.upper())
