"""What can go wrong in a sweep as a whole; what goes wrong in one cell makes that cell void."""

from polyhead_load.errors import LoadError


class SweepError(LoadError):
    """The sweep cannot begin, or cannot go on; the message says why and what to do."""
