"""What became of every request, kept as it comes and written at the end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_load.connection import OK, Answer
from polyhead_proto.names import TIMINGS

SHED = -1
"""The code of a request that was not sent, because too many were under way."""

UNANSWERED = -2
"""The code of a request that had no answer yet when the run was ended."""

MALFORMED = -3
"""The code of a request that was answered with OK, and with something else than the requests before it."""

_UNKNOWN = -1
_NEVER = float("nan")
_SECONDS = ("planned", "sent", "done")
_BYTES = ("request_bytes", "reply_bytes")
_COLUMNS: Mapping[str, type[np.generic]] = (
    dict.fromkeys(_SECONDS, np.float64) | {"code": np.int16} | dict.fromkeys((*_BYTES, *TIMINGS), np.int64)
)
_VERSIONS = ("polyhead", "locust", "gevent", "grpcio", "numpy")

Row: TypeAlias = tuple[float | int, ...]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The time that was measured."""

    started_unix: float
    seconds: float
    cpu_seconds: float
    """Of this process, all its threads."""


NOTHING = Window(started_unix=0, seconds=0, cpu_seconds=0)
"""Where a run ended before the measured start."""


class Recorder:
    """The records of one process."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.shed = 0
        """Requests that were not sent."""
        self.errors = 0
        """Requests that were sent, and failed."""
        self.unanswered = 0
        """Requests that were sent, and given up when the run was ended."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *, planned: float, sent: float, done: float, request_bytes: int, answer: Answer) -> None:
        """Records how a request ended; times are seconds from the measured start."""
        self.errors += answer.code != OK
        timings = (answer.head.timings.get(name, _UNKNOWN) for name in TIMINGS)
        self._rows.append((planned, sent, done, answer.code, request_bytes, answer.bytes, *timings))

    def add_shed(self, *, planned: float, request_bytes: int) -> None:
        """Records a request that was not sent."""
        self.shed += 1
        self._add_without_answer(planned, _NEVER, SHED, request_bytes)

    def add_unanswered(self, *, planned: float, sent: float, request_bytes: int) -> None:
        """Records a request that was still under way at the end."""
        self.unanswered += 1
        self._add_without_answer(planned, sent, UNANSWERED, request_bytes)

    def _add_without_answer(self, planned: float, sent: float, code: int, request_bytes: int) -> None:
        timings = (_UNKNOWN for _ in TIMINGS)
        self._rows.append((planned, sent, _NEVER, code, request_bytes, 0, *timings))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns, in the order in which the requests were planned."""
        rows = sorted(self._rows, key=lambda row: row[0])
        columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
        return {
            name: np.array(column, dtype)
            for (name, dtype), column in zip(_COLUMNS.items(), columns, strict=True)
        }

    def write(self, folder: Path, window: Window) -> None:
        """Writes `records.npz`, and then `generator.json`: where that is, all is.

        Raises:
            OSError: The files cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "records.npz").open("wb") as file:
            columns: Any = self.arrays()
            np.savez(file, **columns)
        told = {
            "seconds": window.seconds,
            "cpu_seconds": window.cpu_seconds,
            "planned": len(self),
            "shed": self.shed,
            "errors": self.errors,
            "unanswered": self.unanswered,
            "versions": {"python": python_version()} | {name: version(name) for name in _VERSIONS},
            "started_unix": window.started_unix,
        }
        (folder / "generator.json").write_text(json.dumps(told, indent=1) + "\n")
