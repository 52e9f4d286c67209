"""What can go wrong before any load is sent."""


class LoadError(Exception):
    """The load cannot be put on; the message is meant to be read."""
