"""What a worker is told when it is started. Light: the process above imports it."""

from dataclasses import dataclass

from pydantic import TypeAdapter

from polyhead_server.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One worker's part."""

    settings: Settings
    worker: int
    """Its number, from 0."""
    files: tuple[int, ...]
    """Every worker's file of counters."""
    late: bool
    """It replaces one that has ended, and listens only when it has loaded."""

    def to_line(self) -> bytes:
        """The assignment as a line of JSON."""
        return _ADAPTER.dump_json(self) + b"\n"

    @staticmethod
    def from_line(line: bytes) -> "Assignment":
        """Reads what `to_line` wrote."""
        return _ADAPTER.validate_json(line)


_ADAPTER = TypeAdapter(Assignment)

READY = b"ready\n"
"""A worker's word that it has loaded."""
