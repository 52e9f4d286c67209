"""Record every request of a run, write the records and read them again."""

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from polyhead_load.errors import SweepError

OK = 0
"""Code of a request that was answered: gRPC's status."""

SHED = -1
"""Code of a request that was not sent because too many were in flight."""

UNANSWERED = -2
"""Code of a request without an answer when the run ended."""

MALFORMED = -3
"""Code of a request that was answered with OK, and with something else than the requests before it."""

REST = "network + client"
"""The part of a latency that the server does not account for."""

_SERVER_PARTS = ("parse", "queue", "compute", "serialise")
_ABSENT = -1
"""In the file: the server does not say."""
_VERSIONS = ("polyhead", "locust", "gevent", "grpcio", "numpy")


@cache
def status_name(code: int) -> str:
    """Return the name of a gRPC status, or the number where it has none."""
    return next((status.name for status in grpc.StatusCode if status.value[0] == code), f"status {code}")


class Window(NamedTuple):
    """The measured time, and the CPU time that this process used in it."""

    started_unix: float
    seconds: float
    cpu_seconds: float


class RequestSample(NamedTuple):
    """One planned request. Times are seconds from the start of the measurement; NaN: did not happen."""

    planned: float
    sent: float
    done: float
    code: int
    request_bytes: int
    reply_bytes: int = 0
    parse_ns: int = _ABSENT
    tokenise_ns: int = _ABSENT
    queue_ns: int = _ABSENT
    compute_ns: int = _ABSENT
    serialise_ns: int = _ABSENT


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """All requests of a run: arrays of equal length, one for each field of a record."""

    planned: NDArray[np.float64]
    sent: NDArray[np.float64]
    done: NDArray[np.float64]
    code: NDArray[np.int16]
    """gRPC's status, or one of the codes above."""
    request_bytes: NDArray[np.int64]
    reply_bytes: NDArray[np.int64]
    parse_ns: NDArray[np.int64]
    """As the server says, as are the next four; -1 where it does not."""
    tokenise_ns: NDArray[np.int64]
    queue_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]
    serialise_ns: NDArray[np.int64]

    @classmethod
    def of(cls, records: list[RequestSample]) -> "Records":
        """Put records into arrays, in the order in which they were planned."""
        dtype = np.dtype([(name, _dtype(name)) for name in RequestSample._fields])
        table = np.array(sorted(records, key=lambda record: record.planned), dtype)
        return cls(**{name: table[name].copy() for name in RequestSample._fields})

    @classmethod
    def read(cls, path: Path) -> "Records":
        """Read an .npz file.

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
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            with partial.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Return which requests were answered well."""
        return np.equal(self.code, OK)

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        """Return the times from planned to done, of the requests that were answered well."""
        good = self.answered
        return (self.done[good] - self.planned[good]) * 1e3

    @property
    def lag_ms(self) -> NDArray[np.float64]:
        """Return how late requests were sent, of those that were sent."""
        lag = (self.sent - self.planned) * 1e3
        return lag[~np.isnan(lag)]

    def server_ms(self, part: str) -> NDArray[np.float64]:
        """Return what the server says of a part of its time, of the answered requests; NaN where absent."""
        values = getattr(self, f"{part}_ns")[self.answered]
        return np.where(values == _ABSENT, np.nan, values / 1e6)

    def parts_ms(self) -> Mapping[str, float]:
        """Return the mean latency and the parts that add up to it; only `total` where parts are missing."""
        good = self.answered
        if not good.any():
            return {}
        total = float(self.latency_ms.mean())
        means = {part: float(self.server_ms(part).mean()) for part in _SERVER_PARTS}
        if any(map(math.isnan, means.values())):
            return {"total": total}
        lag = float(np.mean((self.sent[good] - self.planned[good]) * 1e3))
        return {"send lag": lag, **means, REST: total - lag - sum(means.values()), "total": total}


def _dtype(name: str) -> type[np.generic]:
    return np.float64 if name in {"planned", "sent", "done"} else np.int16 if name == "code" else np.int64


@dataclass(frozen=True, kw_only=True)
class GeneratorRun:
    """What one run of the generator left."""

    records: Records
    facts: Mapping[str, Any]
    """About the generator itself: seconds, cpu_seconds, versions, …"""

    @property
    def cpu(self) -> float:
        """Return the share of a core that the generator used."""
        seconds = float(self.facts["seconds"])
        return float(self.facts["cpu_seconds"]) / seconds if seconds > 0 else 0.0

    @classmethod
    def read(cls, folder: Path) -> "GeneratorRun":
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


def write_run(folder: Path, records: list[RequestSample], window: Window) -> None:
    """Write `records.npz`, and then `generator.json`: where that is, all is.

    Raises:
        OSError: The files cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = Records.of(records)
    arrays.write(folder / "records.npz")
    shed, unanswered = (int((arrays.code == code).sum()) for code in (SHED, UNANSWERED))
    facts = {
        "seconds": window.seconds,
        "cpu_seconds": window.cpu_seconds,
        "planned": len(records),
        "shed": shed,
        "errors": len(records) - int(arrays.answered.sum()) - shed - unanswered,
        "unanswered": unanswered,
        "versions": {"python": python_version()} | {name: version(name) for name in _VERSIONS},
        "started_unix": window.started_unix,
    }
    (folder / "generator.json").write_text(json.dumps(facts, indent=1) + "\n")
