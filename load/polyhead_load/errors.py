"""What can go wrong."""


class LoadError(Exception):
    """The load cannot be put on; the message is meant to be read."""


class SweepError(LoadError):
    """The sweep cannot begin, or cannot go on; the message says why and what to do.

    What goes wrong in one cell makes that cell void.
    """
