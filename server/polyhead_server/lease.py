"""Who still uses a model that has been taken out of service."""

from collections.abc import Callable


class Lease:
    """Counts the users of something, and tells when the last is gone. Lives on the event loop."""

    def __init__(self) -> None:
        self._users = 0
        self._at_end: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        self._end()

    def end(self, at_end: Callable[[], None]) -> None:
        """Calls a function once, when nobody uses it any more: now, or after the last."""
        self._at_end = at_end
        self._end()

    def _end(self) -> None:
        if not self._users and self._at_end is not None:
            at_end, self._at_end = self._at_end, None
            at_end()
