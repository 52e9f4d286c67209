"""Errors of the load generator and the sweep."""


class LoadError(Exception):
    """The load cannot be put on; the message is meant to be read."""


class SweepError(LoadError):
    """The sweep cannot begin or go on; the message says why and what to do.

    What goes wrong in one cell makes that run void instead.
    """
