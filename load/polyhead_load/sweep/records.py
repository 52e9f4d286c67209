"""What the generator has recorded: every request of one run."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_load.sweep.errors import SweepError

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
    """gRPC's status; -1 was not sent, because too many were in flight; -3 was answered with something
    else."""
    request_bytes: NDArray[np.int64]
    reply_bytes: NDArray[np.int64]
    parse_ns: NDArray[np.int64]
    """As the server says, as are the next three; -1 where it does not."""
    queue_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]
    serialise_ns: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path) -> "Records":
        """Reads what the generator, or `write`, wrote.

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
        """Writes an .npz file, all of it or nothing."""
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
        return np.equal(self.code, 0)

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
        """The mean latency, and the parts that add up to it; only the total where the server says nothing."""
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
        """Reads the generator's folder.

        Raises:
            SweepError: A file is damaged.
            OSError: A file cannot be read.
        """
        try:
            facts = json.loads((folder / "generator.json").read_bytes())
        except ValueError as error:
            raise SweepError(f"{folder / 'generator.json'} must be JSON, is damaged") from error
        return cls(records=Records.read(folder / "records.npz"), facts=facts)
