"""What became of every request: kept as it comes, written at the end of a run, and read again."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyhead_load.errors import SweepError
from polyhead_proto.names import TIMINGS

if TYPE_CHECKING:
    from polyhead_load.connection import Answer

OK = 0
"""The code of a request that was answered: gRPC's status."""

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
    """CPU time of this process, all its threads."""


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

    def add(self, *, planned: float, sent: float, done: float, request_bytes: int, answer: "Answer") -> None:
        """Record how a request ended; times are seconds from the measured start."""
        self.errors += answer.code != OK
        timings = (answer.head.timings.get(name, _UNKNOWN) for name in TIMINGS)
        self._rows.append((planned, sent, done, answer.code, request_bytes, answer.bytes, *timings))

    def add_shed(self, *, planned: float, request_bytes: int) -> None:
        """Record a request that was not sent."""
        self.shed += 1
        self._add_without_answer(planned, _NEVER, SHED, request_bytes)

    def add_unanswered(self, *, planned: float, sent: float, request_bytes: int) -> None:
        """Record a request that was still under way at the end."""
        self.unanswered += 1
        self._add_without_answer(planned, sent, UNANSWERED, request_bytes)

    def _add_without_answer(self, planned: float, sent: float, code: int, request_bytes: int) -> None:
        timings = (_UNKNOWN for _ in TIMINGS)
        self._rows.append((planned, sent, _NEVER, code, request_bytes, 0, *timings))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns, in the order in which the requests were planned."""
        rows = sorted(self._rows, key=lambda row: row[0])
        columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
        return {
            name: np.array(column, dtype)
            for (name, dtype), column in zip(_COLUMNS.items(), columns, strict=True)
        }

    def write(self, folder: Path, window: Window) -> None:
        """Write `records.npz`, and then `generator.json`: where that is, all is.

        Raises:
            OSError: The files cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "records.npz").open("wb") as file:
            columns: Any = self.arrays()
            np.savez(file, **columns)
        facts = {
            "seconds": window.seconds,
            "cpu_seconds": window.cpu_seconds,
            "planned": len(self),
            "shed": self.shed,
            "errors": self.errors,
            "unanswered": self.unanswered,
            "versions": {"python": python_version()} | {name: version(name) for name in _VERSIONS},
            "started_unix": window.started_unix,
        }
        (folder / "generator.json").write_text(json.dumps(facts, indent=1) + "\n")


SERVER_PARTS = ("parse", "queue", "compute", "serialise")
"""Where a request's time goes in the server."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """One entry for each planned request: arrays of equal length."""

    planned: NDArray[np.float64]
    """Seconds from the start of the measurement, as are `sent` and `done`; NaN where it did not happen."""
    sent: NDArray[np.float64]
    done: NDArray[np.float64]
    code: NDArray[np.int16]
    """gRPC's status, or one of the codes above."""
    request_bytes: NDArray[np.int64]
    reply_bytes: NDArray[np.int64]
    parse_ns: NDArray[np.int64]
    """As the server says, as are the next three; -1 where it does not."""
    queue_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]
    serialise_ns: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path) -> "Records":
        """Read what the generator, or `write`, wrote.

        Raises:
            SweepError: It is damaged.
            OSError: It cannot be read.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls(**{field.name: arrays[field.name] for field in fields(cls)})
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise SweepError(f"{path} must be the records of a run, is damaged: {error}") from error

    def write(self, path: Path) -> None:
        """Write an .npz file, all of it or nothing."""
        partial = path.with_name(f".{path.name}")
        try:
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    allow_pickle=False,
                    **{field.name: getattr(self, field.name) for field in fields(self)},
                )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests were answered well."""
        return np.equal(self.code, OK)

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        """From the planned time to the answer, of those that were answered well."""
        good = self.answered
        return (self.done[good] - self.planned[good]) * 1e3

    @property
    def lag_ms(self) -> NDArray[np.float64]:
        """How late requests were sent, of those that were sent."""
        lag = (self.sent - self.planned) * 1e3
        return lag[~np.isnan(lag)]

    def parts_ms(self) -> Mapping[str, float]:
        """Return the mean latency and the parts that add up to it; only the total where parts are missing."""
        good = self.answered
        if not good.any():
            return {}
        total = float(self.latency_ms.mean())
        server = {part: getattr(self, f"{part}_ns")[good].astype(np.float64) / 1e6 for part in SERVER_PARTS}
        if any((values < 0).any() for values in server.values()):
            return {"total": total}
        means = {part: float(values.mean()) for part, values in server.items()}
        lag = float(np.mean((self.sent[good] - self.planned[good]) * 1e3))
        rest = total - lag - sum(means.values())
        return {"send lag": lag, **means, "network + client": rest, "total": total}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the generator gave."""

    records: Records
    facts: Mapping[str, Any]
    """About the generator itself: seconds, cpu_seconds, versions, …"""

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read the generator's folder.

        Raises:
            SweepError: A file is damaged.
            OSError: A file cannot be read.
        """
        try:
            facts = json.loads((folder / "generator.json").read_bytes())
        except ValueError as error:
            raise SweepError(f"{folder / 'generator.json'} must be JSON, is damaged") from error
        return cls(records=Records.read(folder / "records.npz"), facts=facts)
